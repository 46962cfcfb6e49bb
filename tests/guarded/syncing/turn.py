"""One turn in a folder: says what is found there, and changes files and databases.

Each counter file and each database has a log of the turns that incremented it. Standard output has
one line for each fact: 'found PATH TURN' for the last turn of a log at the start, 'torn PATH' for
what is no version that any turn left, 'done PATH' for an increment that is acknowledged, and
'has PATH TURN...' for a whole log.
"""
import os, random, sqlite3, sys

what, turn, seed, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
os.chdir(folder)
draw = random.Random(seed)
COUNTERS = ['counter-%02d%s' % (n, '.log' if n % 3 == 0 else '') for n in range(20)]
BASES = [('wal.db', 'wal'), ('journal.db', 'delete')]
BLOB_BYTES = 3_000_000


def tell(*words):
    print(*words, flush=True)


def read(path):
    with open(path) as file:
        return file.read()


def save(path, text):
    with open(path, 'w') as file:
        file.write(text)


def log_of(path):
    """Returns the turns of a counter file, or nothing if no turn left it so."""
    try:
        rows = [line.split(' ') for line in read(path).splitlines()]
        if [row[0] for row in rows] == [str(n + 1) for n in range(len(rows))]:
            return [row[1] for row in rows]
    except (OSError, IndexError):
        pass
    return None


def increment(path):
    """Adds this turn to a counter file, in one of three ways."""
    log = log_of(path)
    if log is None:
        return
    text = ''.join('%d %s\n' % row for row in enumerate(log + [turn], 1))
    way = COUNTERS.index(path) % 3
    if way == 0:
        with open(path, 'a') as file:
            file.write(text.splitlines()[-1] + '\n')
    elif way == 1:
        save(path, text)
    else:
        save(path + '.new', text)
        os.rename(path + '.new', path)
    tell('done', path)


def filler(name, size):
    return random.Random(name).randbytes(size)


def pair_is_whole():
    """Tells whether the two files that each turn writes together are of one turn."""
    try:
        texts = [read(path) for path in ('pair-a', 'pair-b')]
        names = [text.split('\n')[0] for text in texts]
        return names[0] == names[1] and all(text == pair_text(names[0]) for text in texts)
    except OSError:
        return False


def pair_text(name):
    return name + '\n' + filler(name, 500 + len(name) * 300).hex()


def swap_is_whole():
    """Tells whether the two files that swap their names are both here, as one turn left them."""
    try:
        words = sorted(read(path).split(' ') for path in ('left', 'right'))
        return [word[0] for word in words] == ['one', 'three'] and words[0][1:] == words[1][1:]
    except OSError:
        return False


def blob_is_whole():
    try:
        with open('blob', 'rb') as file:
            name = file.readline().decode().strip()
            return file.read() == filler(name, BLOB_BYTES)
    except OSError:
        return False


def opened(path, mode):
    base = sqlite3.connect(path, isolation_level=None, timeout=20)
    base.execute('pragma synchronous=normal')
    base.execute('pragma journal_mode=' + mode)
    return base


def rows_of(base):
    if base.execute('pragma integrity_check').fetchall() != [('ok',)]:
        raise sqlite3.DatabaseError('damaged')
    return [row[0] for row in base.execute('select turn from turns order by number')]


def look(command):
    """Says what is here, and returns the databases that can be used."""
    for path in COUNTERS:
        log = log_of(path)
        if log is None:
            tell('torn', path)
        else:
            tell('found', path, log[-1] if log else '-')
            if command == 'check':
                tell('has', path, *log)
    for name, is_whole in ('pair', pair_is_whole), ('swap', swap_is_whole), ('blob', blob_is_whole):
        if not is_whole():
            tell('torn', name)
    bases = []
    for path, mode in BASES:
        try:
            base = opened(path, mode)
            log = rows_of(base)
            tell('found', path, log[-1] if log else '-')
            if command == 'check':
                tell('has', path, *log)
            bases.append((path, base))
        except (sqlite3.Error, OSError):
            tell('torn', path)
    return bases


def change(bases):
    for path in draw.sample(COUNTERS, 10):
        increment(path)
    for path in 'pair-a', 'pair-b':
        save(path, pair_text(turn))
    if swap_is_whole():
        # A name never gets a content back. Syncthing takes what was changed and changed back within
        # a second for a conflict at times, even if one machine alone changes the folder.
        for path in 'left', 'right':
            save(path, read(path).split(' ')[0] + ' ' + turn)
        os.rename('left', 'third')
        os.rename('right', 'left')
        os.rename('third', 'right')
    for path, base in bases:
        try:
            base.execute('begin immediate')
            base.execute('insert into turns(turn) values(?)', (turn,))
            base.execute('update filler set more = randomblob(900) where number % 7 = ?',
                         (draw.randrange(7),))
            base.execute('commit')
            tell('done', path)
        except (sqlite3.Error, OSError) as error:
            tell('failed', path, error)


def leave(bases):
    """Ends as a program does, or as one that dies: with a journal that the next one needs."""
    if draw.random() < 0.5:
        for _, base in bases:
            base.close()
        return
    for path, base in bases:
        if path == 'journal.db':
            base.execute('pragma cache_size=2')
            base.execute('begin immediate')
            base.execute('update filler set more = randomblob(900)')
    os._exit(0)


def make():
    for path in COUNTERS:
        save(path, '')
    for path in 'pair-a', 'pair-b':
        save(path, pair_text(turn))
    save('left', 'one ' + turn)
    save('right', 'three ' + turn)
    make_blob()
    for path, mode in BASES:
        base = opened(path, mode)
        base.execute('create table turns(number integer primary key, turn text unique)')
        base.execute('create table filler(number integer primary key, more blob)')
        base.executemany('insert into filler values(?, ?)', [(n, filler(n, 900)) for n in range(40)])
        base.close()


def make_blob():
    with open('blob', 'wb') as file:
        file.write(turn.encode() + b'\n' + filler(turn, BLOB_BYTES))


if what == 'make':
    make()
else:
    found = look(what)
    if what != 'check':
        if what == 'blob':
            make_blob()
        change(found)
        try:
            leave(found)
        except sqlite3.Error as error:
            tell('failed', 'journal.db', error)
