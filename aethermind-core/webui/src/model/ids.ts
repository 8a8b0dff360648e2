/** A random id of 96 bits. `crypto.randomUUID` requires HTTPS, which a server in a local network lacks. */
export function newId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
