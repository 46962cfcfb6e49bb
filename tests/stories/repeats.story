# A repeated request has one effect, and gets the first answer.
rules requests-kept=10s
t=0s a acquire x request=one
  -> granted token 1 until t=30s
  * x: granted to a, token 1, exclusive
  = x: held, exclusive; a token 1 until t=30s
t=1s a release x
  -> released
  * x: token 1 of a released after 1s
  = all free
t=2s a acquire x request=one
  -> replayed from t=0s: granted token 1 until t=30s
  = all free
t=3s b acquire x request=one
  -> granted token 2 until t=33s
  * x: granted to b, token 2, exclusive
  = x: held, exclusive; b token 2 until t=33s
t=9.999999999s a acquire x request=one
  -> replayed from t=0s: granted token 1 until t=30s
  = x: held, exclusive; b token 2 until t=33s
t=10s c acquire y request=three
  -> granted token 3 until t=40s
  * y: granted to c, token 3, exclusive
  = x: held, exclusive; b token 2 until t=33s
  = y: held, exclusive; c token 3 until t=40s
t=13s a acquire z request=one
  -> granted token 4 until t=43s
  * z: granted to a, token 4, exclusive
  = x: held, exclusive; b token 2 until t=33s
  = y: held, exclusive; c token 3 until t=40s
  = z: held, exclusive; a token 4 until t=43s
# The key of another request is refused, whatever the state of that.
t=14s a acquire w request=one
  -> refused, E_INVALID: request key 'one' was used before for another request; choose a new key for each request, and repeat only the same request
  = x: held, exclusive; b token 2 until t=33s
  = y: held, exclusive; c token 3 until t=40s
  = z: held, exclusive; a token 4 until t=43s
t=14s a release z request=one
  -> refused, E_INVALID: request key 'one' was used before for another request; choose a new key for each request, and repeat only the same request
  = x: held, exclusive; b token 2 until t=33s
  = y: held, exclusive; c token 3 until t=40s
  = z: held, exclusive; a token 4 until t=43s
