// Loaded into Node before the tests of the npm package lockfile. They expect that ten processes
// start within half a second and that a timer of 10 ms never comes a second late. A loaded machine
// keeps neither, on any file system. So a second of theirs lasts ten; shorter timers stay as they are.
const fs = require('fs')

const FACTOR = 10
const { now } = Date
const start = now()
Date.now = () => start + Math.floor((now() - start) / FACTOR)

const { setTimeout: timeout } = global
global.setTimeout = (then, ms, ...rest) => timeout(then, ms < 500 ? ms : ms * FACTOR, ...rest)

// The first of 201 that open the same file has to be the one that locks it, but Node's four threads
// keep no order among them.
const { open } = fs
fs.open = (path, flags, then) => {
  fs.open = open
  try {
    const fd = fs.openSync(path, flags)
    process.nextTick(then, null, fd)
  } catch (error) {
    process.nextTick(then, error)
  }
}
