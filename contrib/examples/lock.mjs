// Runs a command while it holds a lock of a latchfs server, with Node's own library.
// usage: LATCHFS_SERVER=http://box:8080 node lock.mjs NAME CLIENT COMMAND...
// LATCHFS_CA names the certificate of the server's CA, LATCHFS_TOKEN_FILE the file with a token.
// Exits with the command's code, or with 76 when the lock was lost and the command was stopped.
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { constants, uptime } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';

const server = process.env.LATCHFS_SERVER ?? 'http://127.0.0.1:8080';
const { request } = await import(server.startsWith('https:') ? 'node:https' : 'node:http');
const { LATCHFS_CA, LATCHFS_TOKEN_FILE } = process.env;
const ca = LATCHFS_CA && readFileSync(LATCHFS_CA);
const key = LATCHFS_TOKEN_FILE && `Bearer ${readFileSync(LATCHFS_TOKEN_FILE, 'utf8').trim()}`;
const ttl = Number(process.env.LATCHFS_TTL ?? 30); // seconds
const wait = 240; // seconds in the queue, at most
const [name, base, program, ...words] = process.argv.slice(2);
const client = `${base}-${randomBytes(4).toString('hex')}`; // two programs are two clients

const ask = async (method, path, options, timeout = ttl / 10) => {
  const signal = AbortSignal.timeout(timeout * 1000);
  const headers = options ? { 'content-type': 'application/x-www-form-urlencoded' } : {};
  if (key) headers.authorization = key;
  const question = request(server + path, { method, headers, ca, signal });
  question.end(options && String(new URLSearchParams(options)));
  const [answer] = await once(question, 'response');
  let body = '';
  for await (const part of answer) body += part;
  const json = JSON.parse(body);
  const status = answer.statusCode;
  if (status >= 300) throw Object.assign(new Error(json.detail), { status });
  return json;
};

// The session expires at the server, with its lock, `ttl` seconds after the last keep-alive.
// uptime() counts the time in suspend, as the server's clock does.
let [answered, token, command, ending, isOver] = [uptime()];
const { session } = await ask('POST', '/sessions', { client, ttl: `${ttl}s` }, ttl);

const keepAlive = async () => {
  for (let pause = ttl / 3; !isOver; ) {
    await sleep(pause * 1000);
    const [sent, expected] = [uptime(), token];
    pause = ttl / 10; // without an answer the next attempt follows soon
    try {
      await ask('POST', `/sessions/${session}/keepalive`);
      [answered, pause] = [sent, ttl / 3];
      // The keep-alive's own `lost` names a loss once: a lost answer would hide it.
      const { held } = await ask('GET', `/sessions/${session}`);
      isOver = expected !== undefined && !held.some((lock) => lock.token === expected);
    } catch (error) {
      isOver = error.status === 410;
    }
  }
};

const stop = async (code, reason) => {
  if (reason) console.error(reason);
  const isRunning = command?.exitCode === null && command.signalCode === null;
  const ended = isRunning && once(command, 'exit');
  for (const signal of isRunning ? ['SIGTERM', 'SIGKILL'] : []) {
    try {
      process.kill(-command.pid, signal);
    } catch {} // all of its process group has ended
    await Promise.race([ended, sleep(ttl * 100)]);
  }
  await ask('DELETE', `/sessions/${session}`).catch(() => {}); // else it expires by itself
  process.exit(code);
};
const end = (code, reason) => (ending ??= stop(code, reason));

process.on('SIGINT', () => end(130)).on('SIGTERM', () => end(143));
keepAlive();
const watch = () => {
  // Leaves 0.3 ttl to stop the command before the session can expire.
  const isLost = isOver || uptime() - answered > 0.7 * ttl;
  if (isLost) end(76, 'the lock is lost: the command is stopped');
};
setInterval(watch, 100);
const lock = `/locks/${encodeURIComponent(name)}`;
const granted = ask('POST', lock, { client, session, wait: `${wait}s` }, wait + 10);
({ token } = await granted.catch((error) => end(1, error.message)));
watch();
await ending; // if there is an end it comes now
const env = { ...process.env, LATCHFS_LOCK: name, LATCHFS_TOKEN: token };
command = spawn(program, words, { stdio: 'inherit', detached: true, env });
command.on('error', (error) => end(127, error.message));
command.on('exit', (code, signal) => end(code ?? 128 + constants.signals[signal]));
