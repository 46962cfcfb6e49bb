#!/bin/sh
# Runs a command while it holds a lock of a latchfs server: with curl alone, on Linux.
# usage: LATCHFS_SERVER=http://box:8080 sh lock.sh NAME CLIENT COMMAND...
# LATCHFS_CA names the certificate of the server's CA, LATCHFS_TOKEN_FILE the file with a token.
# Exits with the command's code, or with 76 when the lock was lost and the command was stopped.
set -eu
server=${LATCHFS_SERVER:-http://127.0.0.1:8080}
ttl=${LATCHFS_TTL:-30} # seconds
wait=240               # seconds in the queue, at most
tenth=$((ttl / 10)).$((ttl % 10))
name=$1
client=$2-$(od -An -N4 -tx4 /dev/urandom | tr -d ' ') # two programs are two clients
shift 2
# curl reads the token from a pipe: others can see its arguments.
key=
[ -z "${LATCHFS_TOKEN_FILE-}" ] || key="oauth2-bearer = \"$(cat "$LATCHFS_TOKEN_FILE")\""

# ask METHOD PATH [CURL OPTION...]
ask() {
    method=$1 url=$server$2
    shift 2
    echo "$key" | curl -fsS -K - ${LATCHFS_CA:+--cacert "$LATCHFS_CA"} --max-time "$tenth" \
        -X "$method" "$url" "$@"
}

# Hundredths of a second since boot; like the server's clock it counts the time in suspend.
now() {
    read -r seconds _ </proc/uptime
    echo "${seconds%.*}${seconds#*.}"
}

# keep_alive ANSWERED [TOKEN]: keeps the session alive at a third of the ttl. Sends SIGUSR1 to
# this script when TOKEN is lost, or when 0.3 ttl are left to stop the command.
keep_alive() {
    answered=$1
    while kill -0 $$ && sleep 0.2 && [ $(($(now) - answered)) -lt $((ttl * 70)) ]; do
        sent=$(now)
        [ $((sent - answered)) -ge $((ttl * 33)) ] || continue
        case $(ask POST "/sessions/$session/keepalive" -o /dev/null -w '%{http_code}') in
            200) answered=$sent ;;
            410) break ;; # the session is over
            *) continue ;;
        esac
        # The keep-alive's own `lost` names a loss once, so a lost answer would hide it.
        held=$(ask GET "/sessions/$session") || continue
        case $held in *"\"token\":${2-}"[!0-9]*) ;; *) [ -z "${2-}" ] || break ;; esac
    done
    kill -USR1 $$
}

# Stops the command's process group, a tenth of the ttl after SIGTERM by SIGKILL.
finish() {
    trap '' HUP INT TERM USR1
    set +e
    if [ "$!" != "$keeper" ]; then
        command=$!
        kill -s TERM -- "-$command" || kill "$command"
        (sleep "$tenth"; kill -s KILL -- "-$command") >/dev/null & killer=$!
        wait "$command"
        kill -s KILL -- "-$command"
        kill "$killer"
    fi
    kill "$keeper"
    ask DELETE "/sessions/$session" >/dev/null
}

sent=$(now)
session=$(ask POST /sessions --max-time "$ttl" --data-urlencode "client=$client" -d "ttl=${ttl}s" |
    sed -n 's/.*"session":\([0-9]*\).*/\1/p')
[ -n "$session" ] # else curl has said why
keep_alive "$sent" 2>/dev/null & keeper=$!
trap 'finish 2>/dev/null' EXIT
trap 'exit 129' HUP; trap 'exit 130' INT; trap 'exit 143' TERM
trap 'echo "the lock is lost: the command is stopped" >&2; exit 76' USR1
token=$(ask POST "/locks/$name" --max-time $((wait + 10)) --data-urlencode "client=$client" \
    -d "session=$session&wait=${wait}s" | sed -n 's/.*"token":\([0-9]*\).*/\1/p')
[ -n "$token" ]
kill "$keeper"
sent=$(now)
ask POST "/sessions/$session/keepalive" >/dev/null
keep_alive "$sent" "$token" 2>/dev/null & keeper=$!
exec 3<&0 # else a background command reads nothing
LATCHFS_LOCK=$name LATCHFS_TOKEN=$token setsid "$@" <&3 3<&- &
wait $!
