/** Names that do not collide. `crypto.randomUUID` would need HTTPS, which a server in a home network has not. */
export function newId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
