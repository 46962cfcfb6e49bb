// Runs something under a lock of a latchfs server, with Node's own fetch.
// usage: LATCHFS_SERVER=http://box:8080 node lock.mjs NAME CLIENT

const server = process.env.LATCHFS_SERVER ?? 'http://127.0.0.1:8080';

/** Holds the lock, and renews it, while `work(token, lost)` runs; `lost` is an AbortSignal. */
export async function withLock(name, client, work, { ttlMs = 30_000, waitMs = 30_000 } = {}) {
  const url = `${server}/locks/${encodeURIComponent(name)}`;
  const ask = async (method, token, options = {}) => {
    const headers = token === undefined ? {} : { 'If-Match': `"${token}"` };
    const body = new URLSearchParams({ client, ...options });
    const answer = await fetch(url, { method, headers, body });
    const json = await answer.json();
    if (!answer.ok) throw new Error(json.detail ?? answer.statusText);
    return json;
  };
  const { token } = await ask('POST', undefined, { ttl: `${ttlMs}ms`, wait: `${waitMs}ms` });
  const lost = new AbortController();
  // A third of the ttl leaves time for two more attempts.
  const renew = () => ask('PATCH', token).catch((error) => lost.abort(error));
  const keeper = setInterval(renew, ttlMs / 3);
  try {
    return await work(token, lost.signal);
  } finally {
    clearInterval(keeper);
    await ask('DELETE', token);
  }
}

const [name, client] = process.argv.slice(2);
await withLock(name, client, async (token) => {
  console.log(`mine, token ${token}`);
  // The work goes here; give the token to what it changes, so that it can refuse older ones.
});
console.log('released');
