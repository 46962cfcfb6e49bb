# A hold takes another name under a new token; who waited for the old name gets that.
t=0s ann acquire tmp ttl=10s
  -> granted token 1 until t=10s
  * tmp: granted to ann, token 1, exclusive
  = tmp: held, exclusive; ann token 1 until t=10s
t=1s bob acquire tmp wait ttl=10s
  -> waiting with ticket 1, 0 before it
  * tmp: bob waits, ticket 1
  = tmp: held, exclusive; ann token 1 until t=10s; waiting: bob (exclusive)
t=2s ann move tmp to=final
  -> moved token 2 until t=12s
  * tmp: token 1 of ann moved to final after 2s
  * final: granted to ann, token 2, exclusive
  * tmp: granted to bob, token 3, exclusive, ticket 1 after 1s
  = final: held, exclusive; ann token 2 until t=12s
  = tmp: held, exclusive; bob token 3 until t=12s
t=3s ann renew tmp
  -> refused, E_LOCK_NOT_HELD: lock 'tmp' is held by bob, not by ann; only its holder can renew or release it
  = final: held, exclusive; ann token 2 until t=12s
  = tmp: held, exclusive; bob token 3 until t=12s
t=3s ann move final to=final
  -> refused, E_INVALID: lock 'final' has this name already
  = final: held, exclusive; ann token 2 until t=12s
  = tmp: held, exclusive; bob token 3 until t=12s
t=3s ann move final to=tmp
  -> refused, E_LOCK_CONFLICT: lock 'tmp' is held by bob for 9s more (0 waiting); wait with 'latchfs run' or 'latchfs wait'
  = final: held, exclusive; ann token 2 until t=12s
  = tmp: held, exclusive; bob token 3 until t=12s
t=4s bob acquire own ttl=60s
  -> granted token 4 until t=64s
  * own: granted to bob, token 4, exclusive
  = final: held, exclusive; ann token 2 until t=12s
  = own: held, exclusive; bob token 4 until t=64s
  = tmp: held, exclusive; bob token 3 until t=12s
t=5s bob move tmp to=own noreplace
  -> refused, E_LOCK_CONFLICT: lock 'own' is held by your own user, bob, for 59s more (0 waiting), for another program or open file; wait with 'latchfs run' or 'latchfs wait'; or if the lease is yours, renew it with 'latchfs acquire own --reentrant'
  = final: held, exclusive; ann token 2 until t=12s
  = own: held, exclusive; bob token 4 until t=64s
  = tmp: held, exclusive; bob token 3 until t=12s
t=6s bob move tmp to=own
  -> moved token 5 until t=16s
  * tmp: token 3 of bob moved to own after 4s
  * own: token 4 of bob replaced after 2s
  * own: granted to bob, token 5, exclusive
  = final: held, exclusive; ann token 2 until t=12s
  = own: held, exclusive; bob token 5 until t=16s
t=7s ann move final token=1 to=other
  -> refused, E_FENCING_MISMATCH: token 1 of lock 'final' is not the current one (2); stop the work that it guarded: another tenure has begun
  = final: held, exclusive; ann token 2 until t=12s
  = own: held, exclusive; bob token 5 until t=16s
t=7s ann move final token=3 to=other
  -> refused, E_FENCING_MISMATCH: token 3 of lock 'final' is not the current one (2); stop the work that it guarded: another tenure has begun
  = final: held, exclusive; ann token 2 until t=12s
  = own: held, exclusive; bob token 5 until t=16s

# Another's lock is not replaced, not even in its grace.
t=8s carl acquire mine ttl=60s
  -> granted token 6 until t=68s
  * mine: granted to carl, token 6, exclusive
  = final: held, exclusive; ann token 2 until t=12s
  = mine: held, exclusive; carl token 6 until t=68s
  = own: held, exclusive; bob token 5 until t=16s
t=11s carl move mine to=final
  -> refused, E_LOCK_CONFLICT: lock 'final' is held by ann for 1s more (0 waiting); wait with 'latchfs run' or 'latchfs wait'
  = final: held, exclusive; ann token 2 until t=12s
  = mine: held, exclusive; carl token 6 until t=68s
  = own: held, exclusive; bob token 5 until t=16s
t=13s carl move mine to=final
  -> refused, E_LOCK_CONFLICT: lock 'final': grace period active: only ann may take it back for 4s more; try again then
  * final: expired, token 2 of ann
  = final: grace, exclusive; ann token 2 in grace until t=17s
  = mine: held, exclusive; carl token 6 until t=68s
  = own: held, exclusive; bob token 5 until t=16s
t=17s carl move mine to=final
  -> moved token 7 until t=77s
  * own: expired, token 5 of bob
  * final: token 2 of ann lapsed after 15s
  * mine: token 6 of carl moved to final after 9s
  * final: granted to carl, token 7, exclusive
  = final: held, exclusive; carl token 7 until t=77s
  = own: grace, exclusive; bob token 5 in grace until t=21s
