// The page in a real browser. Steps are told to the test that started this, one JSON a line;
// what the test has to do meanwhile is asked for, and answered by a line.
'use strict';
const { chromium } = require('playwright-core');
const assert = require('node:assert');
const readline = require('node:readline');
const [url, pictures, scene] = process.argv.slice(2);

const row = (page, name) => page.locator(`.lock[data-name="${name}"]`);
const go = (page, hash) => page.evaluate((hash) => { location.hash = hash; }, hash);
const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const told = (step) => console.log(JSON.stringify({ step }));
async function asked(step) {
  told(step);
  return (await lines.next()).value;
}
async function http(method, path, headers = {}) {
  const reply = await fetch(url + path, { method, headers });
  assert(reply.ok, `${method} ${path}: ${reply.status}`);
  return reply.json();
}

async function everything(browser) {
  const context = await browser.newContext({ viewport: { width: 1180, height: 900 }, colorScheme: 'light' });
  const page = await context.newPage();
  const wrong = [];
  page.on('console', (line) => line.type() === 'error' && wrong.push(line.text()));
  page.on('pageerror', (error) => wrong.push(String(error)));
  page.on('request', (r) => r.url().startsWith(url) || r.url().startsWith('data:') || wrong.push(r.url()));
  await page.goto(url + '/');
  await page.locator('#contact[data-state=live]').waitFor();
  await page.getByText('Nothing is held').waitFor();
  assert(!await page.locator('#cluster').isVisible(), 'this server is no node');
  told('live');

  await http('POST', '/locks/team/build?client=ci-runner-3&ttl=10m&note=release+1.4');
  const build = row(page, 'team/build');
  await build.waitFor();
  assert.match(await build.innerText(), /ci-runner-3/);
  assert.match(await build.innerText(), /release 1\.4/);
  told('shows what is taken');

  const left = build.locator('.left');
  const before = await left.innerText();
  await page.waitForFunction(([node, text]) => node.textContent !== text, [await left.elementHandle(), before]);
  assert.match(before, /^(10m 00s|9m \d\ds)$/);
  told('counts down');

  await http('POST', '/locks/backup?client=laptop1:alice&ttl=45s');
  await http('POST', '/locks/photos/sync?client=laptop2:bob&ttl=2m&mode=shared');
  await http('POST', '/locks/photos/sync?client=laptop3:eve&ttl=2m&mode=shared');
  const waits = ['web-1', 'web-2', 'web-3'].map((client) =>
    fetch(url + `/locks/team/build?client=${client}&wait=10m`, { method: 'POST' }).catch(() => null));
  await build.locator('.waiters').filter({ hasText: /^3$/ }).waitFor();
  told('shows the line');

  for (const [name, client] of [['nightly', 'cron@a'], ['nightly', 'cron@b'], ['deploy', 'ci-runner-1'], ['backup2', 'laptop1:alice']]) {
    await http('POST', `/locks/${name}?client=${client}`);
    await http('DELETE', `/locks/${name}?client=${client}`);
  }
  // Four are over, and three are still held.
  await page.getByRole('link', { name: 'Last hour' }).click();
  await page.getByRole('img', { name: '4 tenures ended in the last hour, 3 go on' }).waitFor();
  assert.strictEqual(await page.locator('#picture rect').count(), 7);
  await page.screenshot({ path: pictures + '/page-hour.png' });
  await page.getByRole('link', { name: 'Locks', exact: true }).click();
  await build.waitFor();
  assert.strictEqual(await page.locator('.lock[data-name="nightly"]').count(), 0);
  told('draws the last hour');

  await page.keyboard.press('/');
  await page.keyboard.type('photos EVE');
  await page.waitForFunction(() => document.querySelectorAll('.lock').length === 1);
  assert.strictEqual(await page.locator('.lock').getAttribute('data-name'), 'photos/sync');
  await page.keyboard.press('Escape');
  await page.waitForFunction(() => document.querySelectorAll('.lock').length === 3);
  told('filters, by keyboard');

  for (const role of ['banner', 'main', 'search', 'contentinfo']) await page.getByRole(role).waitFor();
  await page.getByRole('searchbox', { name: /find a lock/i }).waitFor();
  await page.getByRole('region', { name: 'Held now' }).waitFor();
  await page.getByRole('table', { name: /Grace first/ }).waitFor();
  await build.getByRole('link', { name: 'team/build' }).click();
  await page.getByRole('list', { name: /Waiting for team\/build/ }).waitFor();
  assert.strictEqual(await page.locator('#queue li').count(), 3);
  await page.getByRole('region', { name: 'team/build' }).waitFor();
  await page.keyboard.press('Escape');
  await build.waitFor();
  assert.strictEqual(await page.locator('#told').getAttribute('aria-live'), 'polite');
  told('can be read aloud');

  await page.screenshot({ path: pictures + '/page-light.png', fullPage: true });
  await page.emulateMedia({ colorScheme: 'dark' });
  await page.screenshot({ path: pictures + '/page-dark.png', fullPage: true });
  await page.setViewportSize({ width: 390, height: 844 });
  await page.waitForTimeout(100);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth);
  assert(wide <= 390, `a phone has to scroll sideways: ${wide}`);
  await page.screenshot({ path: pictures + '/page-phone.png', fullPage: true });
  await page.setViewportSize({ width: 1180, height: 900 });
  await page.emulateMedia({ colorScheme: 'light' });

  await row(page, 'backup').getByRole('link').click();
  assert(!await page.getByRole('button', { name: /^Take lock/ }).isVisible(), 'behind a menu');
  await page.getByText('Actions').click();
  await page.getByRole('button', { name: 'Take lock backup from its holder' }).click();
  await page.getByLabel('Your name as a client').fill('admin');
  await page.getByRole('button', { name: 'Take it' }).click();
  assert(await page.locator('#steal').isVisible(), 'a reason is needed');
  await page.getByLabel(/^Why\?/).fill('the laptop is at the repair shop');
  await page.screenshot({ path: pictures + '/page-steal.png' });
  await page.getByRole('button', { name: 'Take it' }).click();
  await page.locator('#facts dd', { hasText: /^admin$/ }).waitFor();
  assert(!await page.locator('#steal').isVisible());
  assert.strictEqual((await http('GET', '/locks/backup')).holder, 'admin');
  assert.match(await page.locator('#told').innerText(), /backup|You hold/);
  await page.locator('#tenures tr').filter({ hasText: /laptop1:alice.*stolen by admin: the laptop is at the repair shop/ }).waitFor();
  await page.getByText('Actions').waitFor();
  await go(page, '#/');
  told('steals, with a reason');
  assert.deepStrictEqual(wrong, []);

  await asked('kill');
  await page.locator('#contact[data-state=lost]').waitFor();
  const lost = page.getByRole('alert').filter({ hasText: 'Contact with the server is lost' });
  await lost.filter({ hasText: /does not know what is held now.*was so \d+s ago/ }).waitFor();
  assert(await build.isVisible(), 'the stale state is shown');
  await page.screenshot({ path: pictures + '/page-lost.png' });
  told('says that contact is lost');
  await asked('restart');
  await page.locator('#contact[data-state=live]').waitFor();
  await page.getByText('Nothing is held').waitFor();
  await http('POST', '/locks/new?client=a');
  await page.locator('.lock[data-name="new"]').waitFor();
  told('comes back by itself');
  await Promise.all(waits);
}

async function tokens(browser) {
  const page = await (await browser.newContext()).newPage();
  await page.goto(url + '/');
  await page.getByRole('heading', { name: 'Who are you?' }).waitFor();
  await page.getByLabel('Token').fill('no token of this server');
  await page.getByRole('button', { name: 'Show the locks' }).click();
  await page.getByText('This token is not known here').waitFor();
  await page.getByLabel('Token').fill('the secret of laptop1');
  await page.getByRole('button', { name: 'Show the locks' }).click();
  await page.locator('#contact[data-state=live]').waitFor();
  const bearer = { authorization: 'Bearer the secret of laptop1' };
  await http('POST', '/locks/team/build?client=laptop1', bearer);
  await page.locator('.lock[data-name="team/build"]').waitFor();
  assert(!await page.getByRole('button', { name: /^Take lock/ }).isVisible(), 'it may not steal');
  await go(page, '#/locks/team/build');
  await page.locator('#facts dd', { hasText: /^laptop1$/ }).waitFor();
  assert(!await page.getByText('Actions').isVisible(), 'it may not steal');
  assert(!/secret|token/i.test(page.url()), page.url());
  // A link that is sent to a colleague asks for the colleague's token, and then shows the lock.
  const other = await (await browser.newContext()).newPage();
  await other.goto(page.url());
  await other.getByLabel('Token').fill('the secret of laptop1');
  await other.getByRole('button', { name: 'Show the locks' }).click();
  await other.locator('#facts dd', { hasText: /^laptop1$/ }).waitFor();
  await other.getByRole('button', { name: 'Use another token' }).click();
  await other.getByRole('heading', { name: 'Who are you?' }).waitFor();
  assert.strictEqual(await other.evaluate(() => sessionStorage.getItem('token')), null);
  told('asks for a token, and shows what that may do');
}

async function nodes(browser) {
  const page = await (await browser.newContext({ viewport: { width: 1180, height: 900 }, colorScheme: 'light' })).newPage();
  const wrong = [];
  page.on('console', (line) => line.type() === 'error' && wrong.push(line.text()));
  page.on('pageerror', (error) => wrong.push(String(error)));
  await page.goto(url + '/');
  await page.getByText(/2 nodes, .* leads/).waitFor();
  await page.getByRole('link', { name: 'Nodes' }).click();
  const section = page.getByRole('region', { name: /^Nodes/ });
  await section.waitFor();
  const table = page.getByRole('table', { name: /has led for .*One node votes, and may not fail/ });
  await table.waitFor();
  const heads = await table.getByRole('columnheader').allInnerTexts();
  assert.deepStrictEqual(heads, ['Node', 'Role', 'Term', 'Behind', 'Heard', 'Sync']);
  assert.strictEqual(await table.getByRole('rowheader').count(), 2);
  const shown = async (role) => (await table.locator('tbody tr').filter({ hasText: role }).innerText()).split(/\s*\t\s*/);
  const leader = await shown('leader'), learner = await shown('learner');
  assert.match(leader[0], /this server/);
  assert.match(leader[2], /^\d+$/);
  assert.deepStrictEqual([leader[3], leader[4]], ['0', 'now']);
  assert.strictEqual(learner[4], 'now');
  for (const row of [leader, learner]) assert.match(row[5], /^[\d.]+ ms$/);
  told('shows the nodes');

  await page.screenshot({ path: pictures + '/page-nodes.png', fullPage: true });
  await page.emulateMedia({ colorScheme: 'dark' });
  await page.setViewportSize({ width: 390, height: 844 });
  const wide = await page.evaluate(() => document.documentElement.scrollWidth);
  assert(wide <= 390, `a phone has to scroll sideways: ${wide}`);
  const fits = await page.evaluate(() => { const s = document.getElementById('nodes-table'); return s.getBoundingClientRect().right <= innerWidth; });
  assert(fits, 'the table is wider than a phone');
  await page.screenshot({ path: pictures + '/page-nodes-phone.png', fullPage: true });
  await page.setViewportSize({ width: 1180, height: 900 });

  // Nobody asks for a tab that nobody sees.
  const hide = (hidden) => page.evaluate((hidden) => {
    Object.defineProperty(document, 'hidden', { configurable: true, get: () => hidden });
    document.dispatchEvent(new Event('visibilitychange'));
  }, hidden);
  await hide(true);
  await page.waitForFunction(() => !nodesAsked && nodesTimer === null);
  const request = page.waitForRequest(url + '/cluster');
  await hide(false);
  await request;
  told('rests while it is hidden');
  assert.deepStrictEqual(wrong, []);

  await asked('kill');
  const gone = table.locator('tbody tr.silent');
  await gone.waitFor();
  assert.match(await gone.innerText(), /silent\s+learner/);
  await page.waitForFunction(() => /does not answer$/.test(document.getElementById('told').textContent));
  assert.match(await gone.locator('.why').innerText(), /refused|closed|answer|reset/);
  await page.screenshot({ path: pictures + '/page-nodes-silent.png', fullPage: true });
  told('says that one is silent');
}

// The only other voter is killed: the server does not know what is held any more, and says so.
async function minority(browser) {
  const page = await (await browser.newContext({ viewport: { width: 1180, height: 900 }, colorScheme: 'light' })).newPage();
  await http('POST', '/locks/team/build?client=ci&ttl=1h');
  await page.goto(url + '/');
  const build = row(page, 'team/build');
  await build.waitFor();
  const doubt = page.getByRole('alert').filter({ hasText: 'does not know what is held now' });
  assert(!await doubt.isVisible(), 'it knows');
  await asked('kill');
  await doubt.filter({ hasText: /was so \d+s ago/ }).waitFor();
  await page.locator('#contact[data-ready=no]').filter({ hasText: 'grants nothing' }).waitFor();
  assert(await build.isVisible(), 'the stale state is shown');
  await page.getByRole('table', { name: /1 of 2 voters answer; 2 are needed: nothing is granted/ }).waitFor();
  assert(!await page.getByText('Nothing is held').isVisible());
  told('says that it does not know');

  // The same for a page that is opened only now, also where nothing was held.
  const late = await (await browser.newContext()).newPage();
  await late.goto(url + '/');
  await late.getByRole('alert').filter({ hasText: 'does not know what is held now' }).waitFor();
  await late.locator('.lock[data-name="team/build"]').waitFor();
  await late.getByRole('table', { name: /1 of 2 voters answer/ }).waitFor();
  await late.getByRole('searchbox').fill('no such lock');
  assert(!await late.getByText('Nothing is held').isVisible());
  await page.screenshot({ path: pictures + '/page-minority.png', fullPage: true });
  told('says so to a page that is opened later');

  await asked('restart');
  await doubt.waitFor({ state: 'hidden' });
  await http('POST', '/locks/after?client=a');
  await page.locator('.lock[data-name="after"]').waitFor();
  told('knows again');

  // Of a server that does not answer the page shows the nodes that it knew.
  await asked('kill the leader');
  await page.locator('#contact[data-state=lost]').waitFor();
  await page.getByText(/as they were \d+s ago/).waitFor();
  assert.strictEqual(await page.locator('#nodes-rows tr').count(), 2);
}

// A server that grants nothing yet says so, and who waits is shown without a holder.
async function heldOff(browser) {
  const page = await (await browser.newContext({ viewport: { width: 1180, height: 900 } })).newPage();
  const waits = fetch(url + '/locks/build?client=b&wait=1h', { method: 'POST' });
  await page.goto(url + '/');
  await page.locator('#contact[data-state=live][data-ready=no]').filter({ hasText: 'grants nothing' }).waitFor();
  const shut = page.getByRole('alert').filter({ hasText: /nothing is granted before .*began without the leases/ });
  await shut.filter({ hasText: /lasts for 59m \d\ds|lasts for 1h/ }).waitFor();
  const build = row(page, 'build');
  await build.locator('.waiters').filter({ hasText: /^1$/ }).waitFor();
  assert.strictEqual(await build.locator('.holder').innerText(), 'nobody');
  told('says that nothing is granted');
  await http('POST', '/grant-now?client=root&reason=all+are+off');
  await page.locator('#contact[data-state=live][data-ready=yes]').filter({ hasText: 'live' }).waitFor();
  await shut.waitFor({ state: 'hidden' });
  await build.locator('.holder').filter({ hasText: /^b$/ }).waitFor();
  assert((await waits).ok);
}

const views = require('./page_views.js')({ url, pictures, told, asked, http, row, go });
(async () => {
  const browser = await chromium.launch({
    executablePath: '/usr/bin/chromium-headless-shell',
    args: ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
      '--disable-background-networking', '--disable-component-update', '--disable-sync'],
  });
  try {
    await { everything, tokens, nodes, minority, heldOff, ...views }[scene](browser);
  } finally { await browser.close(); }
  told('done');
  process.exit(0);
})().catch((error) => { console.error(error); process.exit(1); });
