# Renew, release, and the token of a tenure that is over.
t=0s a acquire x ttl=10s
  -> granted token 1 until t=10s
  * x: granted to a, token 1, exclusive
  = x: held, exclusive; a token 1 until t=10s
t=1s a renew x token=1 ttl=20s
  -> renewed token 1 until t=21s
  * x: renewed by a, token 1
  = x: held, exclusive; a token 1 until t=21s
t=2s b renew x
  -> refused, E_LOCK_NOT_HELD: lock 'x' is held by a, not by b; only its holder can renew or release it
  = x: held, exclusive; a token 1 until t=21s
t=2s b release x
  -> refused, E_LOCK_NOT_HELD: lock 'x' is held by a, not by b; only its holder can renew or release it
  = x: held, exclusive; a token 1 until t=21s
t=2s b release x token=1
  -> refused, E_LOCK_NOT_HELD: lock 'x' is held by a, not by b; only its holder can renew or release it
  = x: held, exclusive; a token 1 until t=21s
t=2s a release x token=7
  -> refused, E_FENCING_MISMATCH: token 7 of lock 'x' is not the current one (1); stop the work that it guarded: another tenure has begun
  = x: held, exclusive; a token 1 until t=21s
t=3s a release x token=1
  -> released
  * x: token 1 of a released after 3s
  = all free
t=3s a release x token=1
  -> refused, E_LOCK_EXPIRED: the tenure of lock 'x' with token 1 is over; stop the work that it guarded, and acquire the lock anew
  = all free
t=3s a release x
  -> refused, E_LOCK_NOT_HELD: lock 'x' is free, so a has nothing to renew or release; acquire it with 'mkdir' or 'latchfs acquire x'
  = all free
t=4s a acquire x ttl=10s
  -> granted token 2 until t=14s
  * x: granted to a, token 2, exclusive
  = x: held, exclusive; a token 2 until t=14s

# The late release of the first tenure frees nothing newer; nor does its renewal.
t=5s a release x token=1
  -> refused, E_FENCING_MISMATCH: token 1 of lock 'x' is not the current one (2); stop the work that it guarded: another tenure has begun
  = x: held, exclusive; a token 2 until t=14s
t=5s a renew x token=1
  -> refused, E_FENCING_MISMATCH: token 1 of lock 'x' is not the current one (2); stop the work that it guarded: another tenure has begun
  = x: held, exclusive; a token 2 until t=14s
t=5s a renew x
  -> renewed token 2 until t=15s
  * x: renewed by a, token 2
  = x: held, exclusive; a token 2 until t=15s

# A renewal within grace goes on; after it there is nothing to renew.
t=16s a renew x token=2
  -> renewed token 2 until t=26s
  * x: expired, token 2 of a
  * x: renewed by a, token 2
  = x: held, exclusive; a token 2 until t=26s
t=31s a renew x token=2
  -> refused, E_LOCK_EXPIRED: the tenure of lock 'x' with token 2 is over; stop the work that it guarded, and acquire the lock anew
  * x: expired, token 2 of a
  * x: token 2 of a lapsed after 27s
  = all free
