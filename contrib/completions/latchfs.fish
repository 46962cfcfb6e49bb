# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_latchfs_global_optspecs
    string join \n h/help V/version
end

function __fish_latchfs_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_latchfs_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_latchfs_using_subcommand
    set -l cmd (__fish_latchfs_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c latchfs -n "__fish_latchfs_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c latchfs -n "__fish_latchfs_needs_command" -s V -l version -d 'Print version'
complete -c latchfs -n "__fish_latchfs_needs_command" -f -a "mount" -d 'Mount a directory in which files are locks'
complete -c latchfs -n "__fish_latchfs_needs_command" -f -a "serve" -d 'Serve locks to other machines over HTTP'
complete -c latchfs -n "__fish_latchfs_needs_command" -f -a "cert" -d 'Make a certificate authority, and certificates for a server, clients'
complete -c latchfs -n "__fish_latchfs_needs_command" -f -a "cluster" -d 'Show the nodes of the cluster, and change its members'
complete -c latchfs -n "__fish_latchfs_needs_command" -f -a "umount" -d 'Unmount it; a busy mount is detached, a stale one removed'
complete -c latchfs -n "__fish_latchfs_needs_command" -f -a "ls" -d 'Show the held locks and their holders'
complete -c latchfs -n "__fish_latchfs_needs_command" -f -a "status" -d 'Show the status of a lock, whether it is held or free'
complete -c latchfs -n "__fish_latchfs_needs_command" -f -a "acquire" -d 'Take a lock that nobody holds; with --reentrant also renew your own'
complete -c latchfs -n "__fish_latchfs_needs_command" -f -a "wait" -d 'Wait in the queue of a lock, and hold it when this returns'
complete -c latchfs -n "__fish_latchfs_needs_command" -f -a "renew" -d 'Renew a lease for another ttl'
complete -c latchfs -n "__fish_latchfs_needs_command" -f -a "release" -d 'Release a lock'
complete -c latchfs -n "__fish_latchfs_needs_command" -f -a "steal" -d 'Take a lock from its holder; for root and the user who mounted'
complete -c latchfs -n "__fish_latchfs_needs_command" -f -a "events" -d 'Show events as they happen, until Ctrl-C'
complete -c latchfs -n "__fish_latchfs_needs_command" -f -a "run" -d 'Run a command under a lock, and give the lock back when it ends'
complete -c latchfs -n "__fish_latchfs_needs_command" -f -a "guard" -d 'Show a folder so that it changes only under its lock'
complete -c latchfs -n "__fish_latchfs_needs_command" -f -a "folder-snapshot" -d 'Take, check and restore snapshots of a guarded folder'
complete -c latchfs -n "__fish_latchfs_needs_command" -f -a "doctor" -d 'Check all that a mount needs, and say how to fix what is wrong'
complete -c latchfs -n "__fish_latchfs_needs_command" -f -a "audit" -d 'Check that an audit log is as it was written'
complete -c latchfs -n "__fish_latchfs_needs_command" -f -a "sim" -d 'Try a whole cluster on virtual time, with all that may go wrong'
complete -c latchfs -n "__fish_latchfs_needs_command" -f -a "completions" -d 'Print the shell completions of these commands'
complete -c latchfs -n "__fish_latchfs_needs_command" -f -a "man" -d 'Print the manual page: \'latchfs man | man -l -\''
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l client -d 'The client that the mount\'s users belong to; once for all DIRs, or once for each [default: the host\'s name]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l owner -d 'How callers are told apart' -r -f -a "host\t'All users of this host are one client'
user\t'Each user is a client'
session\t'Each login session of a user is a client, so two terminals are two clients'"
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l ttl -d 'How long a lease lasts unrenewed, unless a program says otherwise' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l grace -d 'How long after that only its holder may take it back' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l content -d 'Output of \'cat NAME\': the status as JSON, or the text that was written' -r -f -a "status\t'A read of a lock returns its status as JSON'
note\t'A read of a lock returns the text that was written to it'"
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l hold -d 'How a lease that was made by file is kept alive' -r -f -a "renewal\t'A lease lasts for its ttl after each renewal'
session\t'A lease lasts until the leader of the login session that made it ends'"
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l listen -d 'Serve HTTP as well: unix:PATH, for this machine\'s users, or an address, by --tokens' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l server -d 'Let the server at this URL decide, or the nodes of a cluster (URL,URL), not an engine here [env: `LATCHFS_SERVER`, unless --listen, --state or --data asks for an engine here]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l token-file -d 'A file with the bearer token of the client' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l ca -d 'CA certificate (PEM) that verifies an https server' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l cert -d 'Client certificate (PEM) of this command' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l key -d 'The key of that certificate (PEM)' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l tokens -d 'Bearer tokens and what each may do, in TOML; read again at SIGHUP' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l tls-cert -d 'Encrypt by this certificate, in PEM; read again at SIGHUP' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l tls-key -d 'The key of the certificate, in PEM' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l client-ca -d 'Let clients show certificates that this one has signed' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l certificate-rights -d 'The rights of client certificates, in TOML, without which a certificate has none; read again at SIGHUP' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l refuse-serials -d 'Refuse the certificates with these serial numbers, one a line in hex; read again at SIGHUP' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l allow-host -d 'A name by which clients call a server without tokens and certificates' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l insecure -d 'Be open to a network without tokens, without TLS, or without both' -r -f -a "no-tls\t'Callers need credentials, but others on the network can read them'
no-credentials\t'Connections are encrypted, but everybody on the network may do everything'
both\t'Neither'"
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l share -d 'The most of each limited table that one credential, or one address without any, may take' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l state -d 'Where to keep what a restart needs, or \'none\' [default: /var/lib/latchfs as root, else latchfs in the XDG state directory]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l data -d 'Keep it in a log here instead: nothing is answered before the disk has it, so that a power failure loses nothing either' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l max-ttl -d 'With --state none: the longest ttl of a lease, and with the grace for how long nothing is granted after a start [default: 1m, or --ttl if that is longer]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l format-max -d 'With --data: use no format newer than this one, so that the latchfs before can take over the directory and the nodes of its version can stay in the cluster' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l allow-other -d 'Serve all users [default: as root]'
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l no-allow-other -d 'Serve only the user who mounts [default: as anybody but root]'
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l plain-token -d 'Send the token without encryption, also to a server on another machine'
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l grant-at-once -d 'With --state none: grant locks from the start, since no holder from before it can be alive'
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l nonempty -d 'Mount on a directory with entries, which are hidden; it is not sealed either, so programs can make files in it while nothing is mounted, and lock nothing by them'
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l foreground -d 'Stay until Ctrl-C or SIGTERM, then unmount; this is the default'
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l background -d 'Return as soon as the mount can be used'
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -l detached -d 'Report on standard output when the mount is ready, to the process that started it'
complete -c latchfs -n "__fish_latchfs_using_subcommand mount" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l listen -d 'Where to listen' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l line-listen -d 'Where to take lines such as LOCK,name,client as well' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l allow-follower -d 'Addresses of followers of the line protocol that others may register for them' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l tokens -d 'Bearer tokens and what each may do, in TOML; read again at SIGHUP' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l tls-cert -d 'Encrypt by this certificate, in PEM; read again at SIGHUP' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l tls-key -d 'The key of the certificate, in PEM' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l client-ca -d 'Let clients show certificates that this one has signed' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l certificate-rights -d 'The rights of client certificates, in TOML, without which a certificate has none; read again at SIGHUP' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l refuse-serials -d 'Refuse the certificates with these serial numbers, one a line in hex; read again at SIGHUP' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l allow-host -d 'A name by which clients call a server without tokens and certificates' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l insecure -d 'Be open to a network without tokens, without TLS, or without both' -r -f -a "no-tls\t'Callers need credentials, but others on the network can read them'
no-credentials\t'Connections are encrypted, but everybody on the network may do everything'
both\t'Neither'"
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l share -d 'The most of each limited table that one credential, or one address without any, may take' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l limit -d 'Lower a limit: connections, locks, sessions, waiters, or queue (waiters of one lock)' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l ttl -d 'How long a lease lasts unrenewed, unless a client says otherwise' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l grace -d 'How long after that only its holder may take it back' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l state -d 'Where to keep what a restart needs, or \'none\' [default: /var/lib/latchfs as root, else latchfs in the XDG state directory]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l data -d 'Keep it in a log here instead: nothing is answered before the disk has it, so that a power failure loses nothing either' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l max-ttl -d 'With --state none: the longest ttl of a lease, and with the grace for how long nothing is granted after a start [default: 1m, or --ttl if that is longer]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l format-max -d 'With --data: use no format newer than this one, so that the latchfs before can take over the directory and the nodes of its version can stay in the cluster' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l peer-listen -d 'Listen for other nodes, of which a majority decides' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l peer-address -d 'Where other nodes find this one, if that is another address' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l seed -d 'Nodes that know the others: a new node joins them' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l peer-cert -d 'This node\'s certificate, in PEM, made by \'latchfs cert peer\'' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l peer-key -d 'The key of that certificate, in PEM' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l peer-ca -d 'CA certificate (PEM) that has signed the certificates of all nodes' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l peer-secret-file -d 'The secret that all nodes share instead of certificates, made by \'latchfs cert secret\'' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l node-name -d 'Name of this node [default: the name of this machine]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l url -d 'Where clients find this node\'s server [default: its address]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l pace -d 'How long the network may take: \'lan\' for servers beside each other, \'wifi\' for laptops' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l log-locks -d 'Whether the log has a line for each acquisition and release of a lock' -r -f -a "on\t''
off\t''"
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l grant-at-once -d 'With --state none: grant locks from the start, since no holder from before it can be alive'
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l release-on-node-removal -d 'When a node leaves or is removed, end the holds and waits of the client of its name'
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -l print-permissions -d 'Print the table of permissions, and exit'
complete -c latchfs -n "__fish_latchfs_using_subcommand serve" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c latchfs -n "__fish_latchfs_using_subcommand cert; and not __fish_seen_subcommand_from ca server peer secret client" -l dir -d 'Where keys and certificates are kept' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cert; and not __fish_seen_subcommand_from ca server peer secret client" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c latchfs -n "__fish_latchfs_using_subcommand cert; and not __fish_seen_subcommand_from ca server peer secret client" -f -a "ca" -d 'The authority itself: copy ca.pem to every machine, and keep ca.key private'
complete -c latchfs -n "__fish_latchfs_using_subcommand cert; and not __fish_seen_subcommand_from ca server peer secret client" -f -a "server" -d 'A server, under the names and addresses by which clients find it'
complete -c latchfs -n "__fish_latchfs_using_subcommand cert; and not __fish_seen_subcommand_from ca server peer secret client" -f -a "peer" -d 'A node, under the names and addresses by which other nodes find it'
complete -c latchfs -n "__fish_latchfs_using_subcommand cert; and not __fish_seen_subcommand_from ca server peer secret client" -f -a "secret" -d 'A secret for all nodes of a cluster, instead of a certificate for each: peers.pem'
complete -c latchfs -n "__fish_latchfs_using_subcommand cert; and not __fish_seen_subcommand_from ca server peer secret client" -f -a "client" -d 'A client: it may act as NAME, and as NAME:USER'
complete -c latchfs -n "__fish_latchfs_using_subcommand cert; and __fish_seen_subcommand_from ca" -l dir -d 'Where keys and certificates are kept' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cert; and __fish_seen_subcommand_from ca" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand cert; and __fish_seen_subcommand_from server" -l dir -d 'Where keys and certificates are kept' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cert; and __fish_seen_subcommand_from server" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand cert; and __fish_seen_subcommand_from peer" -l dir -d 'Where keys and certificates are kept' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cert; and __fish_seen_subcommand_from peer" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand cert; and __fish_seen_subcommand_from secret" -l dir -d 'Where keys and certificates are kept' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cert; and __fish_seen_subcommand_from secret" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand cert; and __fish_seen_subcommand_from client" -l dir -d 'Where keys and certificates are kept' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cert; and __fish_seen_subcommand_from client" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and not __fish_seen_subcommand_from status pending promote join leave remove reset backup restore transfer" -l server -d 'A node\'s server; of several, separated by commas, the first that answers' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and not __fish_seen_subcommand_from status pending promote join leave remove reset backup restore transfer" -l token-file -d 'A file with the bearer token of the client' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and not __fish_seen_subcommand_from status pending promote join leave remove reset backup restore transfer" -l ca -d 'CA certificate (PEM) that verifies an https server' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and not __fish_seen_subcommand_from status pending promote join leave remove reset backup restore transfer" -l cert -d 'Client certificate (PEM) of this command' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and not __fish_seen_subcommand_from status pending promote join leave remove reset backup restore transfer" -l key -d 'The key of that certificate (PEM)' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and not __fish_seen_subcommand_from status pending promote join leave remove reset backup restore transfer" -l plain-token -d 'Send the token without encryption, also to a server on another machine'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and not __fish_seen_subcommand_from status pending promote join leave remove reset backup restore transfer" -l json -d 'Print the answer as JSON'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and not __fish_seen_subcommand_from status pending promote join leave remove reset backup restore transfer" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and not __fish_seen_subcommand_from status pending promote join leave remove reset backup restore transfer" -f -a "status" -d 'Show all nodes, and how each stands'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and not __fish_seen_subcommand_from status pending promote join leave remove reset backup restore transfer" -f -a "pending" -d 'Show the requests that a node has not answered yet, with their age and place'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and not __fish_seen_subcommand_from status pending promote join leave remove reset backup restore transfer" -f -a "promote" -d 'Promote a learner to a voter'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and not __fish_seen_subcommand_from status pending promote join leave remove reset backup restore transfer" -f -a "join" -d 'Promote a learner to a voter'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and not __fish_seen_subcommand_from status pending promote join leave remove reset backup restore transfer" -f -a "leave" -d 'Have the node that is asked leave the others, and end'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and not __fish_seen_subcommand_from status pending promote join leave remove reset backup restore transfer" -f -a "remove" -d 'Remove a node, also one that is gone for good'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and not __fish_seen_subcommand_from status pending promote join leave remove reset backup restore transfer" -f -a "reset" -d 'End all holds and waits of clients'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and not __fish_seen_subcommand_from status pending promote join leave remove reset backup restore transfer" -f -a "backup" -d 'Write all that the server knows to a file, while it goes on'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and not __fish_seen_subcommand_from status pending promote join leave remove reset backup restore transfer" -f -a "restore" -d 'Begin a new cluster from a backup, when all nodes of the old one are lost'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and not __fish_seen_subcommand_from status pending promote join leave remove reset backup restore transfer" -f -a "transfer" -d 'Let another node lead'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from status" -l server -d 'A node\'s server; of several, separated by commas, the first that answers' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from status" -l token-file -d 'A file with the bearer token of the client' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from status" -l ca -d 'CA certificate (PEM) that verifies an https server' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from status" -l cert -d 'Client certificate (PEM) of this command' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from status" -l key -d 'The key of that certificate (PEM)' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from status" -l state -d 'Also a sum of all that each knows: nodes that have applied the same entry have the same'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from status" -l plain-token -d 'Send the token without encryption, also to a server on another machine'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from status" -l json -d 'Print the answer as JSON'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from status" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from pending" -l server -d 'A node\'s server; of several, separated by commas, the first that answers' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from pending" -l token-file -d 'A file with the bearer token of the client' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from pending" -l ca -d 'CA certificate (PEM) that verifies an https server' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from pending" -l cert -d 'Client certificate (PEM) of this command' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from pending" -l key -d 'The key of that certificate (PEM)' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from pending" -l plain-token -d 'Send the token without encryption, also to a server on another machine'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from pending" -l json -d 'Print the answer as JSON'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from pending" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from promote" -l server -d 'A node\'s server; of several, separated by commas, the first that answers' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from promote" -l token-file -d 'A file with the bearer token of the client' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from promote" -l ca -d 'CA certificate (PEM) that verifies an https server' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from promote" -l cert -d 'Client certificate (PEM) of this command' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from promote" -l key -d 'The key of that certificate (PEM)' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from promote" -l force -d 'Also when that makes an even number of voters, which is worse than one less'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from promote" -l plain-token -d 'Send the token without encryption, also to a server on another machine'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from promote" -l json -d 'Print the answer as JSON'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from promote" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from join" -l server -d 'A node\'s server; of several, separated by commas, the first that answers' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from join" -l token-file -d 'A file with the bearer token of the client' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from join" -l ca -d 'CA certificate (PEM) that verifies an https server' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from join" -l cert -d 'Client certificate (PEM) of this command' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from join" -l key -d 'The key of that certificate (PEM)' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from join" -l force -d 'Also when that makes an even number of voters, which is worse than one less'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from join" -l plain-token -d 'Send the token without encryption, also to a server on another machine'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from join" -l json -d 'Print the answer as JSON'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from join" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from leave" -l server -d 'A node\'s server; of several, separated by commas, the first that answers' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from leave" -l token-file -d 'A file with the bearer token of the client' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from leave" -l ca -d 'CA certificate (PEM) that verifies an https server' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from leave" -l cert -d 'Client certificate (PEM) of this command' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from leave" -l key -d 'The key of that certificate (PEM)' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from leave" -l plain-token -d 'Send the token without encryption, also to a server on another machine'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from leave" -l json -d 'Print the answer as JSON'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from leave" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from remove" -l server -d 'A node\'s server; of several, separated by commas, the first that answers' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from remove" -l token-file -d 'A file with the bearer token of the client' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from remove" -l ca -d 'CA certificate (PEM) that verifies an https server' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from remove" -l cert -d 'Client certificate (PEM) of this command' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from remove" -l key -d 'The key of that certificate (PEM)' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from remove" -l plain-token -d 'Send the token without encryption, also to a server on another machine'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from remove" -l json -d 'Print the answer as JSON'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from remove" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from reset" -l keep -d 'End the holds and waits of all clients except these and their users' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from reset" -l of -d 'End the holds and waits of this client and its users' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from reset" -l reason -d 'The reason, shown to the holders and written to the audit log' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from reset" -l client -d 'The client to ask as [default: the host\'s name and the user\'s]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from reset" -l server -d 'A node\'s server; of several, separated by commas, the first that answers' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from reset" -l token-file -d 'A file with the bearer token of the client' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from reset" -l ca -d 'CA certificate (PEM) that verifies an https server' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from reset" -l cert -d 'Client certificate (PEM) of this command' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from reset" -l key -d 'The key of that certificate (PEM)' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from reset" -l all -d 'End the holds and waits of all clients'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from reset" -l plain-token -d 'Send the token without encryption, also to a server on another machine'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from reset" -l json -d 'Print the answer as JSON'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from reset" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from backup" -l server -d 'A node\'s server; of several, separated by commas, the first that answers' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from backup" -l token-file -d 'A file with the bearer token of the client' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from backup" -l ca -d 'CA certificate (PEM) that verifies an https server' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from backup" -l cert -d 'Client certificate (PEM) of this command' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from backup" -l key -d 'The key of that certificate (PEM)' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from backup" -l plain-token -d 'Send the token without encryption, also to a server on another machine'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from backup" -l json -d 'Print the answer as JSON'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from backup" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from restore" -l data -d 'The data directory of the first node: empty, or not there' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from restore" -l hold-off -d 'For how long nothing is granted: the longest ttl that any client had [default: 24h]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from restore" -l server -d 'A node\'s server; of several, separated by commas, the first that answers' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from restore" -l token-file -d 'A file with the bearer token of the client' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from restore" -l ca -d 'CA certificate (PEM) that verifies an https server' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from restore" -l cert -d 'Client certificate (PEM) of this command' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from restore" -l key -d 'The key of that certificate (PEM)' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from restore" -l old-holders-are-gone -d 'Grant at once: it is certain that no client still relies on an old lease'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from restore" -l plain-token -d 'Send the token without encryption, also to a server on another machine'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from restore" -l json -d 'Print the answer as JSON'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from restore" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from transfer" -l server -d 'A node\'s server; of several, separated by commas, the first that answers' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from transfer" -l token-file -d 'A file with the bearer token of the client' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from transfer" -l ca -d 'CA certificate (PEM) that verifies an https server' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from transfer" -l cert -d 'Client certificate (PEM) of this command' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from transfer" -l key -d 'The key of that certificate (PEM)' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from transfer" -l plain-token -d 'Send the token without encryption, also to a server on another machine'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from transfer" -l json -d 'Print the answer as JSON'
complete -c latchfs -n "__fish_latchfs_using_subcommand cluster; and __fish_seen_subcommand_from transfer" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand umount" -l unseal -d 'Make the mount points usable directories again: mount leaves them without permissions and, as root, immutable, so that no program locks there while nothing is mounted'
complete -c latchfs -n "__fish_latchfs_using_subcommand umount" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand ls" -l dir -d 'The mount to use [env: `LATCHFS_DIR`] [default: the only one there is]' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand ls" -l server -d 'The server to ask instead of a mount, or the nodes of a cluster (URL,URL) [env: `LATCHFS_SERVER`, unless a mount is named or the current directory lies in one]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand ls" -l client -d 'The client to ask as, at a server [default: the host\'s name and the user\'s]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand ls" -l token-file -d 'A file with the bearer token of the client' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand ls" -l ca -d 'CA certificate (PEM) that verifies an https server' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand ls" -l cert -d 'Client certificate (PEM) of this command' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand ls" -l key -d 'The key of that certificate (PEM)' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand ls" -l plain-token -d 'Send the token without encryption, also to a server on another machine'
complete -c latchfs -n "__fish_latchfs_using_subcommand ls" -l json -d 'Print a JSON array of statuses'
complete -c latchfs -n "__fish_latchfs_using_subcommand ls" -l watch -d 'Keep running and show changes, until Ctrl-C'
complete -c latchfs -n "__fish_latchfs_using_subcommand ls" -l stale -d 'Stale read: the state of the first node that answers, however old, without asking the leader'
complete -c latchfs -n "__fish_latchfs_using_subcommand ls" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c latchfs -n "__fish_latchfs_using_subcommand status" -l dir -d 'The mount to use [env: `LATCHFS_DIR`] [default: the only one there is]' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand status" -l server -d 'The server to ask instead of a mount, or the nodes of a cluster (URL,URL) [env: `LATCHFS_SERVER`, unless a mount is named or the current directory lies in one]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand status" -l client -d 'The client to ask as, at a server [default: the host\'s name and the user\'s]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand status" -l token-file -d 'A file with the bearer token of the client' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand status" -l ca -d 'CA certificate (PEM) that verifies an https server' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand status" -l cert -d 'Client certificate (PEM) of this command' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand status" -l key -d 'The key of that certificate (PEM)' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand status" -l plain-token -d 'Send the token without encryption, also to a server on another machine'
complete -c latchfs -n "__fish_latchfs_using_subcommand status" -l json -d 'Print the lock\'s status as JSON'
complete -c latchfs -n "__fish_latchfs_using_subcommand status" -l stale -d 'Stale read: the state of the first node that answers, however old, without asking the leader'
complete -c latchfs -n "__fish_latchfs_using_subcommand status" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand acquire" -l dir -d 'The mount to use [env: `LATCHFS_DIR`] [default: the only one there is]' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand acquire" -l server -d 'The server to ask instead of a mount, or the nodes of a cluster (URL,URL) [env: `LATCHFS_SERVER`, unless a mount is named or the current directory lies in one]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand acquire" -l client -d 'The client to ask as, at a server [default: the host\'s name and the user\'s]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand acquire" -l token-file -d 'A file with the bearer token of the client' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand acquire" -l ca -d 'CA certificate (PEM) that verifies an https server' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand acquire" -l cert -d 'Client certificate (PEM) of this command' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand acquire" -l key -d 'The key of that certificate (PEM)' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand acquire" -l ttl -d 'How long the lease lasts unrenewed: 30s, 1m30s, 1.5h [default: the mount\'s]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand acquire" -l grace -d 'How long after that only you may take it back [default: the mount\'s]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand acquire" -l note -d 'Note shown to clients that find the lock held' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand acquire" -l plain-token -d 'Send the token without encryption, also to a server on another machine'
complete -c latchfs -n "__fish_latchfs_using_subcommand acquire" -l json -d 'Print the lock\'s status as JSON'
complete -c latchfs -n "__fish_latchfs_using_subcommand acquire" -l shared -d 'Hold it together with others that ask for the same'
complete -c latchfs -n "__fish_latchfs_using_subcommand acquire" -l reentrant -d 'Renew it if your user holds it already, instead of being refused'
complete -c latchfs -n "__fish_latchfs_using_subcommand acquire" -l remember -d 'Remember the name beyond this tenure, so that \'release --handover\' works'
complete -c latchfs -n "__fish_latchfs_using_subcommand acquire" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c latchfs -n "__fish_latchfs_using_subcommand wait" -l dir -d 'The mount to use [env: `LATCHFS_DIR`] [default: the only one there is]' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand wait" -l server -d 'The server to ask instead of a mount, or the nodes of a cluster (URL,URL) [env: `LATCHFS_SERVER`, unless a mount is named or the current directory lies in one]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand wait" -l client -d 'The client to ask as, at a server [default: the host\'s name and the user\'s]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand wait" -l token-file -d 'A file with the bearer token of the client' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand wait" -l ca -d 'CA certificate (PEM) that verifies an https server' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand wait" -l cert -d 'Client certificate (PEM) of this command' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand wait" -l key -d 'The key of that certificate (PEM)' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand wait" -l ttl -d 'How long the lease lasts unrenewed: 30s, 1m30s, 1.5h [default: the mount\'s]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand wait" -l grace -d 'How long after that only you may take it back [default: the mount\'s]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand wait" -l note -d 'Note shown to clients that find the lock held' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand wait" -l wait -l timeout -d 'Give up after so long: 10m, 1h30m [default: never]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand wait" -l plain-token -d 'Send the token without encryption, also to a server on another machine'
complete -c latchfs -n "__fish_latchfs_using_subcommand wait" -l json -d 'Print the lock\'s status as JSON'
complete -c latchfs -n "__fish_latchfs_using_subcommand wait" -l shared -d 'Hold it together with others that ask for the same'
complete -c latchfs -n "__fish_latchfs_using_subcommand wait" -l reentrant -d 'Renew it if your user holds it already, instead of waiting'
complete -c latchfs -n "__fish_latchfs_using_subcommand wait" -l remember -d 'Remember the name beyond this tenure, so that \'release --handover\' works'
complete -c latchfs -n "__fish_latchfs_using_subcommand wait" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand renew" -l dir -d 'The mount to use [env: `LATCHFS_DIR`] [default: the only one there is]' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand renew" -l server -d 'The server to ask instead of a mount, or the nodes of a cluster (URL,URL) [env: `LATCHFS_SERVER`, unless a mount is named or the current directory lies in one]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand renew" -l client -d 'The client to ask as, at a server [default: the host\'s name and the user\'s]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand renew" -l token-file -d 'A file with the bearer token of the client' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand renew" -l ca -d 'CA certificate (PEM) that verifies an https server' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand renew" -l cert -d 'Client certificate (PEM) of this command' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand renew" -l key -d 'The key of that certificate (PEM)' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand renew" -l ttl -d 'How long the lease lasts unrenewed: 30s, 1m30s, 1.5h [default: the mount\'s]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand renew" -l grace -d 'How long after that only you may take it back [default: the mount\'s]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand renew" -l note -d 'Note shown to clients that find the lock held' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand renew" -l token -d 'Only if this is still the lock\'s token: then no newer tenure can be hit' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand renew" -l plain-token -d 'Send the token without encryption, also to a server on another machine'
complete -c latchfs -n "__fish_latchfs_using_subcommand renew" -l json -d 'Print the lock\'s status as JSON'
complete -c latchfs -n "__fish_latchfs_using_subcommand renew" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand release" -l dir -d 'The mount to use [env: `LATCHFS_DIR`] [default: the only one there is]' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand release" -l server -d 'The server to ask instead of a mount, or the nodes of a cluster (URL,URL) [env: `LATCHFS_SERVER`, unless a mount is named or the current directory lies in one]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand release" -l client -d 'The client to ask as, at a server [default: the host\'s name and the user\'s]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand release" -l token-file -d 'A file with the bearer token of the client' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand release" -l ca -d 'CA certificate (PEM) that verifies an https server' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand release" -l cert -d 'Client certificate (PEM) of this command' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand release" -l key -d 'The key of that certificate (PEM)' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand release" -l token -d 'Only if this is still the lock\'s token: then no newer tenure can be hit' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand release" -l handover -d 'A text for the tenures after yours, which \'status\' shows; acquire the lock with --remember' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand release" -l plain-token -d 'Send the token without encryption, also to a server on another machine'
complete -c latchfs -n "__fish_latchfs_using_subcommand release" -l json -d 'Print the lock\'s status as JSON'
complete -c latchfs -n "__fish_latchfs_using_subcommand release" -l all -d 'All locks that your client holds; at a server, all queues in which it waits as well'
complete -c latchfs -n "__fish_latchfs_using_subcommand release" -l any -d 'Also if another program of your user has acquired it'
complete -c latchfs -n "__fish_latchfs_using_subcommand release" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand steal" -l dir -d 'The mount to use [env: `LATCHFS_DIR`] [default: the only one there is]' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand steal" -l server -d 'The server to ask instead of a mount, or the nodes of a cluster (URL,URL) [env: `LATCHFS_SERVER`, unless a mount is named or the current directory lies in one]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand steal" -l client -d 'The client to ask as, at a server [default: the host\'s name and the user\'s]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand steal" -l token-file -d 'A file with the bearer token of the client' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand steal" -l ca -d 'CA certificate (PEM) that verifies an https server' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand steal" -l cert -d 'Client certificate (PEM) of this command' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand steal" -l key -d 'The key of that certificate (PEM)' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand steal" -l reason -d 'Why, for the holder and the audit log' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand steal" -l ttl -d 'How long the lease lasts unrenewed [default: the mount\'s]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand steal" -l note -d 'Note shown to clients that find the lock held' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand steal" -l plain-token -d 'Send the token without encryption, also to a server on another machine'
complete -c latchfs -n "__fish_latchfs_using_subcommand steal" -l json -d 'Print the lock\'s status as JSON'
complete -c latchfs -n "__fish_latchfs_using_subcommand steal" -l now -d 'Do not wait for the holder of a lock that was acquired with --remember, such as that of a guarded folder, although it may go on until its lease expires'
complete -c latchfs -n "__fish_latchfs_using_subcommand steal" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c latchfs -n "__fish_latchfs_using_subcommand events" -l dir -d 'The mount to use [env: `LATCHFS_DIR`] [default: the only one there is]' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand events" -l server -d 'The server to ask instead of a mount, or the nodes of a cluster (URL,URL) [env: `LATCHFS_SERVER`, unless a mount is named or the current directory lies in one]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand events" -l client -d 'The client to ask as, at a server [default: the host\'s name and the user\'s]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand events" -l token-file -d 'A file with the bearer token of the client' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand events" -l ca -d 'CA certificate (PEM) that verifies an https server' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand events" -l cert -d 'Client certificate (PEM) of this command' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand events" -l key -d 'The key of that certificate (PEM)' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand events" -l since -d 'Begin with event N, if it is kept still, and not now' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand events" -l plain-token -d 'Send the token without encryption, also to a server on another machine'
complete -c latchfs -n "__fish_latchfs_using_subcommand events" -l json -d 'Print one JSON object a line'
complete -c latchfs -n "__fish_latchfs_using_subcommand events" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c latchfs -n "__fish_latchfs_using_subcommand run" -l guard -d 'Take the lock of the guarded folder that VIEW shows, or of FOLDER itself where it has no view, and start the command once everything is there' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand run" -l stage -d 'With --guard FOLDER: where the guard keeps its state, on the folder\'s file system [default: latchfs in the state directory]' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand run" -l dir -d 'The mount to use [env: `LATCHFS_DIR`] [default: the only one there is]' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand run" -l server -d 'The server to ask instead of a mount, or the nodes of a cluster (URL,URL) [env: `LATCHFS_SERVER`, unless a mount is named or the current directory lies in one]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand run" -l client -d 'The client to ask as, at a server [default: the host\'s name and the user\'s]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand run" -l token-file -d 'A file with the bearer token of the client' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand run" -l ca -d 'CA certificate (PEM) that verifies an https server' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand run" -l cert -d 'Client certificate (PEM) of this command' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand run" -l key -d 'The key of that certificate (PEM)' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand run" -l wait -d 'Wait in the queue for at most this long: 10m, 1h30m [default: for ever]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand run" -l ttl -d 'How long the lock stays held when this machine dies [default: the mount\'s]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand run" -l note -d 'Note shown to clients that find the lock held' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand run" -l on-lost -d 'Command to run with sh -c after the lock was lost and the command has ended' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand run" -l slot -d 'Run once for each KEY, on whatever host comes first: the lock NAME@KEY stays held for --ttl [default: 1h] after the command has succeeded, and others exit with 0 at once' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand run" -l plain-token -d 'Send the token without encryption, also to a server on another machine'
complete -c latchfs -n "__fish_latchfs_using_subcommand run" -l try -d 'Do not wait: exit with 75 if another has the lock'
complete -c latchfs -n "__fish_latchfs_using_subcommand run" -l shared -d 'Hold it together with others that ask for the same'
complete -c latchfs -n "__fish_latchfs_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l server -d 'The server that decides about the lock [default: as \'guard init\' recorded]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l dir -d 'A mount on a server, which decides about the lock' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l state -d 'Where the locks of a folder of \'guard init --alone\' are kept [default: beside the stages]' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l token-file -d 'A file with the bearer token of the client' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l ca -d 'CA certificate (PEM) that verifies an https server' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l cert -d 'Client certificate (PEM) of this command' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l key -d 'The key of that certificate (PEM)' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l client -d 'How this machine is named to the server [default: the host\'s name]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l stage -d 'Where to keep stages and lost files, on the folder\'s file system [default: latchfs in the state directory]' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l on-write -d 'A change without the lock: take it if it is free, wait for it (wait=30s), or refuse' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l give-after -d 'Give the lock up once nothing has changed for so long: a duration, or never' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l yield -d 'When another machine asks for the lock: give it up once nothing has changed for so long' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l max -d 'When another machine asks for the lock: give it up after so long at the latest' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l unsure -d 'When nobody can say whether everything is here: wait, or go on with the folder as it stands' -r -f -a "wait\t'Wait for the machine that changed the folder last, or for \'guard accept\''
go\t'Go on with the folder as it stands'"
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l foreign -d 'When a program without a guard has changed files: wait for \'guard accept\', or accept them' -r -f -a "wait\t'Wait for \'guard accept\''
accept\t'Accept the versions that stand there, once they have not changed for 10 s'"
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l owner -d 'For which programs the lock is held' -r -f -a "host\t'For all programs of this machine'
user\t'For the programs of one user'
session\t'For the programs of one login session'"
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l mode -d 'Whether machines that share the storage hold the lock one after the other, or all at once' -r -f -a "exclusive\t'One machine changes the folder at a time'
shared\t'Many machines change the folder at a time: the last save of a file wins'"
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l in-place -d 'Files that are changed in place even if they are rewritten [default: *.log, nohup.out]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l never-ask -d 'Files whose changes take a free lock but never wait for it [default: .git/index.lock]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l local -d 'Files that belong to this machine and never reach the folder [default: *-shm beside *-wal, .*.swp, .~lock.*#, .DS_Store, Thumbs.db, desktop.ini, .Trash-*]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l max-stage -d 'How much content that is not closed yet the guard keeps: bytes, or with K, M, G or T' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l max-lost -d 'How much the lost files may hold; beyond it changes fail with ENOSPC' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l keep-unread -d 'How much of such versions to keep among the lost files when a save replaces them' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l settle -d 'How long nothing must change before other machines are told of the changes' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l on-lost -d 'Run this when the lock was lost; the event is in `LATCHFS_EVENT`' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l on-ready -d 'Run this when the lock was taken and the folder is ready; the event is in `LATCHFS_EVENT`' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l carry -d 'Tell a sync tool of the changes that a marker names, so that they are carried at once: the Syncthing of this user, or a command that reads a path from each line' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l ttl -d 'How long the lock lasts when this machine does not answer' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l plain-token -d 'Send the token without encryption, also to a server on another machine'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l keep -d 'When another machine asks for the lock: keep it'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l careful -d 'Refuse a save over a version of another machine that no program here has opened'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l sync-saves -d 'Write each file to the disk before it appears in the folder'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l shared-storage -d 'Other machines guard the same storage, as \'guard init --shared-storage\' recorded'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l allow-other -d 'Serve all users [default: as root]'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l no-allow-other -d 'Serve only the user who starts the guard [default: as anybody but root]'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l background -d 'Return as soon as the view can be used'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -l detached -d 'Report on standard output when the view is ready, to the process that started it'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -a "init" -d 'Make a folder a guarded one: once, on one machine'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -a "take" -d 'Take the folder\'s lock, and wait for it'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -a "accept" -d 'Take the folder\'s lock, and go on without what has not arrived'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -a "give" -d 'Give the folder\'s lock up'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -a "wait" -d 'Wait until this machine holds the folder\'s lock and everything is here'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -a "status" -d 'Show the state of a guard'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and not __fish_seen_subcommand_from init take accept give wait status lost" -a "lost" -d 'List, restore or drop what was kept out of the folder'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from init" -l server -d 'The server that decides who may change the folder, or the nodes of a cluster (URL,URL)' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from init" -l dir -d 'A mount on the server that decides who may change the folder' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from init" -l client -d 'How this machine is named to the server [default: the host\'s name]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from init" -l stage -d 'Where the guard is going to keep its state, on the folder\'s file system [default: latchfs in the state directory]' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from init" -l token-file -d 'A file with the bearer token of the client' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from init" -l ca -d 'CA certificate (PEM) that verifies an https server' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from init" -l cert -d 'Client certificate (PEM) of this command' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from init" -l key -d 'The key of that certificate (PEM)' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from init" -l alone -d 'Only guards of this machine change the folder'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from init" -l new-id -d 'The folder is a copy, or its server was replaced: give it an id of its own [default server: that of the folder\'s record]'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from init" -l shared-storage -d 'Several machines change the same storage, not copies of it'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from init" -l plain-token -d 'Send the token without encryption, also to a server on another machine'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from init" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from take" -l client -d 'Without a view: how this machine is named to the server [default: the host\'s name]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from take" -l stage -d 'Without a view: where the guard keeps its state, on the folder\'s file system [default: latchfs in the state directory]' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from take" -l for -d 'Take the lock along for so long: it is kept also where the server can\'t be reached, and no other machine gets it before' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from take" -l server -d 'The server that decides about the lock [default: as \'guard init\' recorded]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from take" -l dir -d 'A mount on a server, which decides about the lock' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from take" -l state -d 'Where the locks of a folder of \'guard init --alone\' are kept [default: beside the stages]' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from take" -l token-file -d 'A file with the bearer token of the client' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from take" -l ca -d 'CA certificate (PEM) that verifies an https server' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from take" -l cert -d 'Client certificate (PEM) of this command' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from take" -l key -d 'The key of that certificate (PEM)' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from take" -l on-lost -d 'Without a view: run this when the lock was lost; the event is in `LATCHFS_EVENT`' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from take" -l carry -d 'Without a view: tell a sync tool of the changes that a marker names, so that they are carried at once: the Syncthing of this user, or a command that reads a path from each line' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from take" -l ttl -d 'Without a view: how long the lock lasts when this machine does not answer' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from take" -l try -d 'Fail with exit code 75 if another machine holds the lock'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from take" -l plain-token -d 'Send the token without encryption, also to a server on another machine'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from take" -l detached -d 'Be the guard in the background, and report to the process that started it'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from take" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from accept" -l reason -d 'Why you go on without what has not arrived; other machines are told' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from accept" -l from -d 'Put the content of a conflict copy back, which \'guard status\' names, in the place of PATH' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from accept" -l client -d 'Without a view: how this machine is named to the server [default: the host\'s name]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from accept" -l stage -d 'Without a view: where the guard keeps its state, on the folder\'s file system [default: latchfs in the state directory]' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from accept" -l server -d 'The server that decides about the lock [default: as \'guard init\' recorded]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from accept" -l dir -d 'A mount on a server, which decides about the lock' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from accept" -l state -d 'Where the locks of a folder of \'guard init --alone\' are kept [default: beside the stages]' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from accept" -l token-file -d 'A file with the bearer token of the client' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from accept" -l ca -d 'CA certificate (PEM) that verifies an https server' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from accept" -l cert -d 'Client certificate (PEM) of this command' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from accept" -l key -d 'The key of that certificate (PEM)' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from accept" -l on-lost -d 'Without a view: run this when the lock was lost; the event is in `LATCHFS_EVENT`' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from accept" -l carry -d 'Without a view: tell a sync tool of the changes that a marker names, so that they are carried at once: the Syncthing of this user, or a command that reads a path from each line' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from accept" -l ttl -d 'Without a view: how long the lock lasts when this machine does not answer' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from accept" -l plain-token -d 'Send the token without encryption, also to a server on another machine'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from accept" -l detached -d 'Be the guard in the background, and report to the process that started it'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from accept" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from give" -l client -d 'Without a view: how this machine is named to the server [default: the host\'s name]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from give" -l stage -d 'Without a view: where the guard keeps its state, on the folder\'s file system [default: latchfs in the state directory]' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from give" -l token-file -d 'A file with the bearer token of the client' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from give" -l ca -d 'CA certificate (PEM) that verifies an https server' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from give" -l cert -d 'Client certificate (PEM) of this command' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from give" -l key -d 'The key of that certificate (PEM)' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from give" -l plain-token -d 'Send the token without encryption, also to a server on another machine'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from give" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from wait" -l client -d 'Without a view: how this machine is named to the server [default: the host\'s name]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from wait" -l stage -d 'Without a view: where the guard keeps its state, on the folder\'s file system [default: latchfs in the state directory]' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from wait" -l token-file -d 'A file with the bearer token of the client' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from wait" -l ca -d 'CA certificate (PEM) that verifies an https server' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from wait" -l cert -d 'Client certificate (PEM) of this command' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from wait" -l key -d 'The key of that certificate (PEM)' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from wait" -l plain-token -d 'Send the token without encryption, also to a server on another machine'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from wait" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from status" -l client -d 'Without a view: how this machine is named to the server [default: the host\'s name]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from status" -l stage -d 'Without a view: where the guard keeps its state, on the folder\'s file system [default: latchfs in the state directory]' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from status" -l token-file -d 'A file with the bearer token of the client' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from status" -l ca -d 'CA certificate (PEM) that verifies an https server' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from status" -l cert -d 'Client certificate (PEM) of this command' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from status" -l key -d 'The key of that certificate (PEM)' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from status" -l json -d 'Print JSON'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from status" -l plain-token -d 'Send the token without encryption, also to a server on another machine'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from status" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from lost" -l client -d 'Without a view: how this machine is named to the server [default: the host\'s name]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from lost" -l stage -d 'Without a view: where the guard keeps its state, on the folder\'s file system [default: latchfs in the state directory]' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from lost" -l restore -d 'Put a lost file into the folder, beside the file that has its name' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from lost" -l drop -d 'Remove a lost file for good' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from lost" -l token-file -d 'A file with the bearer token of the client' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from lost" -l ca -d 'CA certificate (PEM) that verifies an https server' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from lost" -l cert -d 'Client certificate (PEM) of this command' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from lost" -l key -d 'The key of that certificate (PEM)' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from lost" -l json -d 'Print JSON'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from lost" -l plain-token -d 'Send the token without encryption, also to a server on another machine'
complete -c latchfs -n "__fish_latchfs_using_subcommand guard; and __fish_seen_subcommand_from lost" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and not __fish_seen_subcommand_from take ls show verify restore rm" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and not __fish_seen_subcommand_from take ls show verify restore rm" -f -a "take" -d 'Take a snapshot of the folder, once no program has a file open for writing'
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and not __fish_seen_subcommand_from take ls show verify restore rm" -f -a "ls" -d 'List the snapshots, newest first'
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and not __fish_seen_subcommand_from take ls show verify restore rm" -f -a "show" -d 'Show one snapshot'
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and not __fish_seen_subcommand_from take ls show verify restore rm" -f -a "verify" -d 'Compare each file of a snapshot with its digest'
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and not __fish_seen_subcommand_from take ls show verify restore rm" -f -a "restore" -d 'Restore a snapshot to a new directory, or give the folder its content'
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and not __fish_seen_subcommand_from take ls show verify restore rm" -f -a "rm" -d 'Remove a snapshot'
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and __fish_seen_subcommand_from take" -l client -d 'Without a view: how this machine is named to the server [default: the host\'s name]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and __fish_seen_subcommand_from take" -l stage -d 'Without a view: where the guard keeps its state, on the folder\'s file system [default: latchfs in the state directory]' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and __fish_seen_subcommand_from take" -l quiet -d 'How long to wait until no program has a file open for writing' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and __fish_seen_subcommand_from take" -l best-effort -d 'Do not wait: files that programs have open for writing may be half changed'
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and __fish_seen_subcommand_from take" -l json -d 'Print JSON'
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and __fish_seen_subcommand_from take" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and __fish_seen_subcommand_from ls" -l client -d 'Without a view: how this machine is named to the server [default: the host\'s name]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and __fish_seen_subcommand_from ls" -l stage -d 'Without a view: where the guard keeps its state, on the folder\'s file system [default: latchfs in the state directory]' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and __fish_seen_subcommand_from ls" -l json -d 'Print JSON'
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and __fish_seen_subcommand_from ls" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and __fish_seen_subcommand_from show" -l client -d 'Without a view: how this machine is named to the server [default: the host\'s name]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and __fish_seen_subcommand_from show" -l stage -d 'Without a view: where the guard keeps its state, on the folder\'s file system [default: latchfs in the state directory]' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and __fish_seen_subcommand_from show" -l json -d 'Print JSON'
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and __fish_seen_subcommand_from verify" -l client -d 'Without a view: how this machine is named to the server [default: the host\'s name]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and __fish_seen_subcommand_from verify" -l stage -d 'Without a view: where the guard keeps its state, on the folder\'s file system [default: latchfs in the state directory]' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and __fish_seen_subcommand_from verify" -l json -d 'Print JSON'
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and __fish_seen_subcommand_from verify" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and __fish_seen_subcommand_from restore" -l client -d 'Without a view: how this machine is named to the server [default: the host\'s name]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and __fish_seen_subcommand_from restore" -l stage -d 'Without a view: where the guard keeps its state, on the folder\'s file system [default: latchfs in the state directory]' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and __fish_seen_subcommand_from restore" -l to -d 'Restore to this directory, which must not exist' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and __fish_seen_subcommand_from restore" -l in-place -d 'Give the folder the content of the snapshot: files that it does not have are removed'
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and __fish_seen_subcommand_from restore" -l undo -d 'Undo a restore in place of this snapshot that was interrupted'
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and __fish_seen_subcommand_from restore" -l json -d 'Print JSON'
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and __fish_seen_subcommand_from restore" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and __fish_seen_subcommand_from rm" -l client -d 'Without a view: how this machine is named to the server [default: the host\'s name]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and __fish_seen_subcommand_from rm" -l stage -d 'Without a view: where the guard keeps its state, on the folder\'s file system [default: latchfs in the state directory]' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and __fish_seen_subcommand_from rm" -l json -d 'Print JSON'
complete -c latchfs -n "__fish_latchfs_using_subcommand folder-snapshot; and __fish_seen_subcommand_from rm" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand doctor" -l state -d 'The state directory to look at, or \'none\' [default: those of the mounts, or as for mount]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand doctor" -l server -d 'The server to look at, with its cluster; what mounts need is seen to only if there are some' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand doctor" -l token-file -d 'A file with the bearer token of the client' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand doctor" -l ca -d 'CA certificate (PEM) that verifies an https server' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand doctor" -l cert -d 'Client certificate (PEM) of this command' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand doctor" -l key -d 'The key of that certificate (PEM)' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand doctor" -l dir -d 'With --strict: the mount whose server decides about the lock [default: as the guard uses it]' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand doctor" -l client -d 'Without a view: how this machine is named to the server [default: the host\'s name]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand doctor" -l stage -d 'Without a view: where the guard keeps its state, on the folder\'s file system [default: latchfs in the state directory]' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand doctor" -l plain-token -d 'Send the token without encryption, also to a server on another machine'
complete -c latchfs -n "__fish_latchfs_using_subcommand doctor" -l strict -d 'Check one guarded folder, whether its guard runs or not, and print a line for each finding'
complete -c latchfs -n "__fish_latchfs_using_subcommand doctor" -l mend -d 'Mend what can be mended without a person: what killed guards and programs left'
complete -c latchfs -n "__fish_latchfs_using_subcommand doctor" -l json -d 'Print the findings as JSON'
complete -c latchfs -n "__fish_latchfs_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand audit; and not __fish_seen_subcommand_from verify" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand audit; and not __fish_seen_subcommand_from verify" -f -a "verify" -d 'Check that no line of an audit log was changed, removed or added'
complete -c latchfs -n "__fish_latchfs_using_subcommand audit; and __fish_seen_subcommand_from verify" -l client -d 'Without a view: how this machine is named to the server [default: the host\'s name]' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand audit; and __fish_seen_subcommand_from verify" -l stage -d 'Without a view: where the guard keeps its state, on the folder\'s file system [default: latchfs in the state directory]' -r -F
complete -c latchfs -n "__fish_latchfs_using_subcommand audit; and __fish_seen_subcommand_from verify" -l json -d 'Print the result as JSON'
complete -c latchfs -n "__fish_latchfs_using_subcommand audit; and __fish_seen_subcommand_from verify" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand sim" -l seed -d 'Seed of the random numbers: the same seed gives the same run' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand sim" -l nodes -d 'How many nodes vote' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand sim" -l seconds -d 'For how long things go wrong, in virtual time' -r
complete -c latchfs -n "__fish_latchfs_using_subcommand sim" -l handovers -d 'Let clients set handovers too, and restore another cluster from a backup at the end'
complete -c latchfs -n "__fish_latchfs_using_subcommand sim" -l json -d 'Print the result as JSON'
complete -c latchfs -n "__fish_latchfs_using_subcommand sim" -l trace -d 'Print all that happened, too'
complete -c latchfs -n "__fish_latchfs_using_subcommand sim" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c latchfs -n "__fish_latchfs_using_subcommand completions" -s h -l help -d 'Print help'
complete -c latchfs -n "__fish_latchfs_using_subcommand man" -s h -l help -d 'Print help'
