# A release that arrives late does not end what its sender has acquired again since.
t=0s a acquire x ttl=10s
  -> granted token 1 until t=10s
  * x: granted to a, token 1, exclusive
  = x: held, exclusive; a token 1 until t=10s
t=1s a acquire x ttl=10s
  -> renewed token 1 until t=11s
  * x: renewed by a, token 1
  = x: held, exclusive; a token 1 until t=11s
t=2s a release x token=1 acquisition=0
  -> refused, E_FENCING_MISMATCH: lock 'x' was acquired again under token 1 after the acquire that this release names, and stays held; name acquisition 1 to end it
  = x: held, exclusive; a token 1 until t=11s
t=2s a release x acquisition=0
  -> refused, E_FENCING_MISMATCH: lock 'x' was acquired again under token 1 after the acquire that this release names, and stays held; name acquisition 1 to end it
  = x: held, exclusive; a token 1 until t=11s
t=3s a renew x token=1
  -> renewed token 1 until t=13s
  * x: renewed by a, token 1
  = x: held, exclusive; a token 1 until t=13s
t=4s a release x token=1 acquisition=1
  -> released
  * x: token 1 of a released after 4s
  = all free
t=4s a release x token=1 acquisition=1
  -> refused, E_LOCK_EXPIRED: the tenure of lock 'x' with token 1 is over; stop the work that it guarded, and acquire the lock anew
  = all free

# A release that names no acquire ends the tenure, as before.
t=5s a acquire x ttl=10s
  -> granted token 2 until t=15s
  * x: granted to a, token 2, exclusive
  = x: held, exclusive; a token 2 until t=15s
t=6s a acquire x ttl=10s
  -> renewed token 2 until t=16s
  * x: renewed by a, token 2
  = x: held, exclusive; a token 2 until t=16s
t=7s a release x token=2
  -> released
  * x: token 2 of a released after 2s
  = all free

# An open file: locked, unlocked and locked again before the first unlock arrives.
t=10s a open ttl=60s
  -> session 3 opened
  * session 3 of a opened
  = all free
t=10s a acquire y file=3.1
  -> granted token 4 with session 3
  * y: granted to a, token 4, exclusive
  = y: held, exclusive; a token 4 until t=70s, file 3.1
t=11s a acquire y file=3.1
  -> renewed token 4 with session 3
  * y: renewed by a, token 4
  = y: held, exclusive; a token 4 until t=70s, file 3.1
t=12s b acquire y wait
  -> waiting with ticket 1, 0 before it
  * y: b waits, ticket 1
  = y: held, exclusive; a token 4 until t=70s, file 3.1; waiting: b (exclusive)
t=13s a release y token=4 acquisition=0
  -> refused, E_FENCING_MISMATCH: lock 'y' was acquired again under token 4 after the acquire that this release names, and stays held; name acquisition 1 to end it
  = y: held, exclusive; a token 4 until t=70s, file 3.1; waiting: b (exclusive)
t=14s a release y token=4 acquisition=1
  -> released
  * y: token 4 of a released after 4s
  * y: granted to b, token 5, exclusive, ticket 1 after 2s
  = y: held, exclusive; b token 5 until t=44s

# A downgrade is an acquire; an upgrade is one too, under a new token.
t=20s b acquire y shared
  -> renewed token 5 until t=50s
  * y: renewed by b, token 5
  = y: held, shared; b token 5 until t=50s
t=21s b release y token=5 acquisition=0
  -> refused, E_FENCING_MISMATCH: lock 'y' was acquired again under token 5 after the acquire that this release names, and stays held; name acquisition 1 to end it
  = y: held, shared; b token 5 until t=50s
t=22s b acquire y
  -> renewed token 6 until t=52s
  * y: token 5 of b replaced after 8s
  * y: granted to b, token 6, exclusive
  = y: held, exclusive; b token 6 until t=52s
t=23s b release y token=5
  -> refused, E_FENCING_MISMATCH: token 5 of lock 'y' is not the current one (6); stop the work that it guarded: another tenure has begun
  = y: held, exclusive; b token 6 until t=52s
t=24s b release y token=6 acquisition=1
  -> refused, E_FENCING_MISMATCH: lock 'y' was acquired again under token 6 after the acquire that this release names, and stays held; name acquisition 2 to end it
  = y: held, exclusive; b token 6 until t=52s
t=25s b release y token=6 acquisition=2
  -> released
  * y: token 6 of b released after 3s
  = all free

# An acquire that names its lease counts as one; a renewal does not.
t=30s a acquire y ttl=10s
  -> granted token 7 until t=40s
  * y: granted to a, token 7, exclusive
  = y: held, exclusive; a token 7 until t=40s
t=31s a renew y token=7 acquires
  -> renewed token 7 until t=41s
  * y: renewed by a, token 7
  = y: held, exclusive; a token 7 until t=41s
t=32s a release y token=7 acquisition=0
  -> refused, E_FENCING_MISMATCH: lock 'y' was acquired again under token 7 after the acquire that this release names, and stays held; name acquisition 1 to end it
  = y: held, exclusive; a token 7 until t=41s
t=33s a renew y token=7
  -> renewed token 7 until t=43s
  * y: renewed by a, token 7
  = y: held, exclusive; a token 7 until t=43s
t=34s a release y token=7 acquisition=1
  -> released
  * y: token 7 of a released after 4s
  = all free
