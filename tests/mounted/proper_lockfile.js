// States the documented behaviour of npm proper-lockfile, whose package has no tests: lock, check
// and unlock, stale locks, retries, and the report of a compromised lock. Each test prints whether
// it passed.
const fs = require('fs'), assert = require('assert');
const lockfile = require('proper-lockfile');
const how = { realpath: false }, past = () => new Date(Date.now() - 60000);
const code = (promise) => promise.then(() => 'ok', (error) => error.code);
const tests = {
    async 'lock makes the directory, and release removes it'() {
        const release = await lockfile.lock('a', how);
        assert(fs.statSync('a.lock').isDirectory());
        assert.equal(await lockfile.check('a', how), true);
        await release();
        assert.equal(await lockfile.check('a', how), false);
        assert(!fs.existsSync('a.lock'));
        assert.equal(await code(release()), 'ERELEASED');
    },
    async 'a second lock is refused, and unlock needs a lock'() {
        await lockfile.lock('b', how);
        assert.equal(await code(lockfile.lock('b', how)), 'ELOCKED');
        await lockfile.unlock('b', how);
        assert.equal(await code(lockfile.unlock('b', how)), 'ENOTACQUIRED');
    },
    async 'the functions that wait for nothing'() {
        const release = lockfile.lockSync('c', how);
        assert.throws(() => lockfile.lockSync('c', how), { code: 'ELOCKED' });
        assert.equal(lockfile.checkSync('c', how), true);
        release();
        assert.equal(lockfile.checkSync('c', how), false);
        lockfile.lockSync('c', how);
        lockfile.unlockSync('c', how);
    },
    async 'the file must exist unless told otherwise'() {
        assert.equal(await code(lockfile.lock('missing')), 'ENOENT');
        fs.writeFileSync('d', '');
        const release = await lockfile.lock('d');
        await release();
    },
    async 'another path of the lock'() {
        const release = await lockfile.lock('e', { ...how, lockfilePath: 'elsewhere' });
        assert(fs.existsSync('elsewhere') && !fs.existsSync('e.lock'));
        await release();
    },
    async 'retries'() {
        const release = await lockfile.lock('f', how);
        setTimeout(release, 150);
        const retries = { retries: 20, minTimeout: 20, maxTimeout: 50 };
        await (await lockfile.lock('f', { ...how, retries }))();
        await lockfile.lock('f', how);
        const few = { retries: 2, minTimeout: 10, maxTimeout: 10 };
        assert.equal(await code(lockfile.lock('f', { ...how, retries: few })), 'ELOCKED');
        await lockfile.unlock('f', how);
    },
    async 'a stale lock is removed'() {
        fs.mkdirSync('g.lock');
        fs.utimesSync('g.lock', past(), past());
        assert.equal(await lockfile.check('g', how), false);
        await (await lockfile.lock('g', how))();
        fs.mkdirSync('g.lock');
        assert.equal(await code(lockfile.lock('g', how)), 'ELOCKED');
        fs.rmdirSync('g.lock');
    },
    async 'the lock is kept fresh'() {
        const release = await lockfile.lock('h', { ...how, update: 1000 });
        const before = fs.statSync('h.lock').mtimeMs;
        await new Promise((done) => setTimeout(done, 1500));
        assert(fs.statSync('h.lock').mtimeMs > before + 500);
        await release();
    },
    async 'a lock that was removed or touched is compromised'() {
        const changes = [
            () => fs.rmdirSync('i.lock'),
            () => fs.utimesSync('i.lock', past(), past()),
        ];
        for (const change of changes) {
            let release;
            const error = await new Promise((onCompromised) => {
                lockfile.lock('i', { ...how, update: 1000, onCompromised }).then((given) => {
                    release = given;
                    change();
                });
            });
            assert.equal(error.code, 'ECOMPROMISED');
            assert.equal(await code(release()), 'ERELEASED');
            fs.rmSync('i.lock', { recursive: true, force: true });
        }
    },
};
(async () => {
    // The package's own timers do not keep a program running.
    const awake = setInterval(() => {}, 1_000);
    for (const [name, test] of Object.entries(tests)) {
        const error = await test().then(() => null, (error) => error);
        console.log(error ? 'FAILED' : 'ok', name);
        if (error) console.error(error);
    }
    clearInterval(awake);
})();
