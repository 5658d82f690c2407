// The page of the flash sale lab: receives the lab's events and updates the parts of the page.

import { action, refresh } from "./actions.js";
import { el, setAttr, setText } from "./dom.js";
import { Ladder } from "./ladder.js";
import { Panel } from "./panel.js";
import { Lab } from "./stream.js";

const byId = (id) => document.getElementById(id);
const panel = new Panel(byId("panel"), byId("events"));
const ladder = new Ladder(byId("ladder"));
const lab = new Lab(update);

byId("ladder-actions").append(
  action("Run the whole ladder", "api/run", { rung: "all" }, () => !lab.live, { class: "main" }));

function update(what) {
  showConnection();
  if (what === "state") {
    ladder.build(lab.state);
    ladder.update(lab);
    panel.update(lab);
    showSettings(lab.state.settings ?? {});
    byId("ladder-actions").hidden = !lab.state.interactive;
    setAttr(document.body, "data-interactive", Boolean(lab.state.interactive));
  }
  if (what === "live") {
    ladder.updateLive(lab);
    panel.updateLive(lab);
  }
  refresh(lab);
  document.title = lab.live ? `▶ ${lab.live.scenario} · Flash sale lab` : "Flash sale lab";
}

function showConnection() {
  const word = lab.connected ? (lab.live ? "live" : lab.state.finished ? "finished" : "connected") : "ended";
  const text = { live: "Live", finished: "All scenarios have run", connected: "Connected" }[word];
  setAttr(byId("connection"), "data-is", word);
  setText(byId("connection"), text ?? "The lab has ended. Reconnecting …");
}

function showSettings(settings) {
  const named = [
    ["stock", "pieces"], ["buyers", "buyers at a time"], ["workers", "worker processes"],
    ["database", "database"], ["frontend", "load balancer"], ["load", "load generator"],
  ];
  const known = named.filter(([name]) => settings[name] !== undefined && settings[name] !== null);
  byId("settings").replaceChildren(...known.map(([name, label]) => el("li", {}, el("b", {}, String(settings[name])), ` ${label}`)));
}

lab.listen();
