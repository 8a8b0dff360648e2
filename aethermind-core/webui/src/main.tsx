import "./style/base.css";
import "./style/layout.css";
import "./style/sidebar.css";
import "./style/thread.css";
import "./style/markdown.css";
import "./style/dialog.css";

import "@preact/signals";
import { render } from "preact";

import { App } from "./app";
import { loadLibrary } from "./model/library";
import { watchConnection } from "./model/connection";

await loadLibrary();
render(<App />, document.getElementById("app")!);
void watchConnection();
