// Start reading here: new data is drawn at once, and the times twice a second.

import { byId, mark, say, show, visible } from "./dom.js";
import { LockPage } from "./lock.js";
import { drawFigures, drawNodes, drawTape } from "./panels.js";
import { Board } from "./stream.js";
import { Table } from "./table.js";

const TICK_MS = 500;
const SILENT_MS = 15000;

const board = new Board(draw);
const table = new Table(board);
const lockPage = new LockPage(board);

function route() {
  const given = location.hash.startsWith("#lock=") ? location.hash.slice("#lock=".length) : null;
  let name = null;
  try {
    name = given === null ? null : decodeURIComponent(given);
  } catch {
    name = null; // a malformed address
  }
  show(byId("overview"), name === null);
  show(byId("lock"), name !== null);
  lockPage.open(name);
  window.scrollTo(0, 0);
}

function draw() {
  drawConnection();
  drawFigures(board);
  drawNodes(board);
  drawTape(board);
  table.draw();
}

function drawConnection() {
  const silent = board.connected && Date.now() - board.heardAt > SILENT_MS;
  const state = !board.connected ? "away" : silent ? "silent" : "live";
  const words = { away: "The dashboard does not answer. What is shown is old.", silent: "No news for a while.", live: "Live" };
  mark(byId("connection"), "state", state);
  say(byId("connection"), words[state]);
  const faults = Object.entries(board.faults).map(([node, why]) => `${node}: ${why}`);
  const lead = board.readable ? "" : "Too few nodes answer. The locks are shown as they were last seen. ";
  say(byId("banner"), visible(lead + faults.join("; ")));
  mark(byId("banner"), "level", board.readable ? "warn" : "bad");
  show(byId("banner"), faults.length > 0);
}

window.addEventListener("hashchange", route);
setInterval(() => {
  if (lockPage.name === null) table.tick();
  else lockPage.tick();
  drawConnection();
}, TICK_MS);
route();
board.listen();
