// The flash sale lab's page: hears what the lab tells and hands it to those who show it.

import { action, refresh } from "./actions.js";
import { el, mark, say } from "./dom.js";
import { Ladder } from "./ladder.js";
import { Panel } from "./panel.js";
import { Lab } from "./stream.js";

const byId = (id) => document.getElementById(id);
const panel = new Panel(byId("panel"));
const ladder = new Ladder(byId("ladder"));
const lab = new Lab(heard);

byId("ladder-actions").append(
  action("Run the whole ladder", "api/run", { rung: "all" }, () => !lab.live, { class: "main" }),
  action("Stop", "api/stop", {}, () => lab.live || lab.state.queue?.length));

function heard(what) {
  showConnection();
  if (what === "state") {
    ladder.build(lab.state);
    ladder.update(lab);
    panel.update(lab);
    showSettings(lab.state.settings ?? {});
    byId("ladder-actions").hidden = !lab.state.interactive;
    mark(document.body, "data-interactive", Boolean(lab.state.interactive));
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
  const text = { live: "Live", finished: "The ladder has been played", connected: "Connected" }[word];
  mark(byId("connection"), "data-is", word);
  say(byId("connection"), text ?? "The lab has ended; trying to reach it again …");
}

function showSettings(settings) {
  const named = [
    ["stock", "pieces"], ["buyers", "buyers at once"], ["workers", "shop processes"],
    ["database", "database"], ["frontend", "in front"], ["load", "load"],
  ];
  const known = named.filter(([name]) => settings[name] !== undefined && settings[name] !== null);
  byId("settings").replaceChildren(...known.map(([name, label]) => el("li", {}, el("b", {}, String(settings[name])), ` ${label}`)));
}

lab.listen();
