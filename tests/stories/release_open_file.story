# A release that names an open file ends its lease under the name and token that `mv` has given it.

t=0s a open
  -> session 1 opened
  * session 1 of a opened
  = all free
t=1s a acquire x file=1.7
  -> granted token 2 with session 1
  * x: granted to a, token 2, exclusive
  = x: held, exclusive; a token 2 until t=30s, file 1.7
t=2s b acquire y wait
  -> granted token 3 until t=32s
  * y: granted to b, token 3, exclusive
  = x: held, exclusive; a token 2 until t=30s, file 1.7
  = y: held, exclusive; b token 3 until t=32s
t=2s b acquire x wait
  -> waiting with ticket 1, 0 before it
  * x: b waits, ticket 1
  = x: held, exclusive; a token 2 until t=30s, file 1.7; waiting: b (exclusive)
  = y: held, exclusive; b token 3 until t=32s
t=3s a move x to=z
  -> moved token 4 with session 1
  * x: token 2 of a moved to z after 2s
  * z: granted to a, token 4, exclusive
  * x: granted to b, token 5, exclusive, ticket 1 after 1s
  = x: held, exclusive; b token 5 until t=33s
  = y: held, exclusive; b token 3 until t=32s
  = z: held, exclusive; a token 4 until t=30s, file 1.7
# The name and the token that the holder knew are those of another client's lock now.
t=4s a release x token=2
  -> refused, E_FENCING_MISMATCH: token 2 of lock 'x' is not the current one (5); stop the work that it guarded: another tenure has begun
  = x: held, exclusive; b token 5 until t=33s
  = y: held, exclusive; b token 3 until t=32s
  = z: held, exclusive; a token 4 until t=30s, file 1.7
t=4s a release x token=2 file=1.7
  -> released
  * z: token 4 of a released after 1s
  = x: held, exclusive; b token 5 until t=33s
  = y: held, exclusive; b token 3 until t=32s
t=5s a release x token=2 file=1.7
  -> refused, E_FENCING_MISMATCH: token 2 of lock 'x' is not the current one (5); stop the work that it guarded: another tenure has begun
  = x: held, exclusive; b token 5 until t=33s
  = y: held, exclusive; b token 3 until t=32s

# Without the client's own session and number nothing ends.
t=6s a acquire u file=1.8
  -> granted token 6 with session 1
  * u: granted to a, token 6, exclusive
  = u: held, exclusive; a token 6 until t=30s, file 1.8
  = x: held, exclusive; b token 5 until t=33s
  = y: held, exclusive; b token 3 until t=32s
t=6s a release u file=1.9
  -> refused, E_LOCK_NOT_HELD: lock 'u' is held by a, not by a; only its holder can renew or release it
  = u: held, exclusive; a token 6 until t=30s, file 1.8
  = x: held, exclusive; b token 5 until t=33s
  = y: held, exclusive; b token 3 until t=32s
t=6s b release u file=1.8
  -> refused, E_LOCK_NOT_HELD: lock 'u' is held by a, not by b; only its holder can renew or release it
  = u: held, exclusive; a token 6 until t=30s, file 1.8
  = x: held, exclusive; b token 5 until t=33s
  = y: held, exclusive; b token 3 until t=32s
t=6s a release u file=2.8
  -> refused, E_LOCK_NOT_HELD: lock 'u' is held by a, not by a; only its holder can renew or release it
  = u: held, exclusive; a token 6 until t=30s, file 1.8
  = x: held, exclusive; b token 5 until t=33s
  = y: held, exclusive; b token 3 until t=32s

# After the session has ended, the lease is in its grace, and is found under its name only.
t=7s a end session=1 expired
  -> session ended
  * session 1 of a expired
  * u: expired, token 6 of a
  = u: grace, exclusive; a token 6 in grace until t=12s, file 1.8
  = x: held, exclusive; b token 5 until t=33s
  = y: held, exclusive; b token 3 until t=32s
t=8s a release v file=1.8
  -> refused, E_LOCK_NOT_HELD: lock 'v' is free, so a has nothing to renew or release; acquire it with 'mkdir' or 'latchfs acquire v'
  = u: grace, exclusive; a token 6 in grace until t=12s, file 1.8
  = x: held, exclusive; b token 5 until t=33s
  = y: held, exclusive; b token 3 until t=32s
t=8s a release u file=1.8
  -> released
  * u: token 6 of a released after 2s
  = x: held, exclusive; b token 5 until t=33s
  = y: held, exclusive; b token 3 until t=32s
