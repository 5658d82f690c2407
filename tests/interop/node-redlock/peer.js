// A node-redlock lock in a process of its own: PORT NAME. See ../python_peer.py for what it is told and answers.
"use strict";

const readline = require("readline");
const Redis = require("ioredis");
const Redlock = require("redlock");

const client = new Redis(Number(process.argv[2]), "127.0.0.1");
const once = new Redlock([client], { retryCount: 0 });
const often = new Redlock([client], { retryCount: 1000 });
const name = process.argv[3];
const ttl = 20000;
let lock = null;

async function answer(line) {
  if (line === "try") {
    try {
      lock = await once.lock(name, ttl);
      console.log("held");
    } catch (error) {
      if (!(error instanceof Redlock.LockError)) throw error;
      console.log("refused");
    }
  } else if (line === "wait") {
    console.log("waiting");
    lock = await often.lock(name, ttl);
    console.log("held");
  } else if (line === "release") {
    await lock.unlock();
    console.log("released");
  }
}

async function main() {
  await client.ping();
  console.log("ready");
  for await (const line of readline.createInterface({ input: process.stdin })) await answer(line);
  client.disconnect();
}

main();
