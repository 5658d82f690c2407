// Buttons that change something: each sends a POST with the token, and is enabled only while the action is possible.

import { el } from "./dom.js";

const SHOWN_MS = 7000;
const buttons = new Set();

// The token moves from the visible address into this tab's storage, so that a shared screen or a copied link does not reveal it.
function tokenOfThisTab() {
  const address = new URL(location.href);
  const given = address.searchParams.get("token");
  if (given) {
    sessionStorage.setItem("lab-token", given);
    address.searchParams.delete("token");
    history.replaceState(null, "", address);
  }
  return sessionStorage.getItem("lab-token");
}

const token = tokenOfThisTab();

export const mayAct = (lab) => Boolean(lab.connected && lab.state?.interactive && token);

export function whyNot(lab) {
  if (!lab.state?.interactive) return "Read-only: start the lab with --serve to get buttons.";
  return token ? "" : "The buttons need the token: open the address that the lab printed.";
}

// `possible(lab)` tells whether the action makes sense now. `body` may be a function, which is called at the click.
export function action(label, path, body, possible, attributes = {}) {
  const button = el("button", { type: "button", "data-post": path, disabled: true, ...attributes }, label);
  button.addEventListener("click", async () => {
    button.disabled = true;
    await post(path, typeof body === "function" ? body() : body);
    button.disabled = !button.isPossible;
  });
  button.possible = possible;
  buttons.add(button);
  return button;
}

export function refresh(lab) {
  for (const button of buttons) {
    if (button.wasShown && !button.isConnected) buttons.delete(button);
    button.wasShown ||= button.isConnected;
    button.isPossible = mayAct(lab) && Boolean(button.possible(lab));
    if (button.disabled === button.isPossible) button.disabled = !button.isPossible;
  }
}

async function post(path, body) {
  try {
    const headers = { "Content-Type": "application/json", "X-Lab-Token": token };
    const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
    if (answer.ok) return;
    const told = await answer.json().catch(() => ({}));
    complain(told.error ?? `The lab answered ${answer.status}.`);
  } catch (error) {
    complain(`The lab did not answer: ${error.message}.`);
  }
}

function complain(text) {
  const message = el("p", {}, text);
  document.getElementById("messages").append(message);
  setTimeout(() => message.remove(), SHOWN_MS);
}
