import { defineConfig } from "vite";

// The bundle is committed where the Python package carries it; `make lint` builds it elsewhere and compares.
export default defineConfig({
  base: "./", // a proxy may show the page below a path of its own
  build: {
    outDir: "../src/aethermind/server/web",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
    license: { fileName: "licenses.md" },
  },
  server: {
    proxy: Object.fromEntries(["/v1", "/ready", "/tokenize"].map((path) => [path, "http://127.0.0.1:8000"])),
  },
});
