//! `serve --print-permissions`: prints the table by which every front end authorizes requests.

use crate::auth::permissions::{Operation, Rule};

use crate::server::{http, line};
use std::fmt::Write;

/// The legend of the table of permissions.
const LEGEND: &str = "\
CLIENT    named    the caller may speak as the client that the request names, and as the owner of
                   the session that it names, if it names one
          owner    the caller may speak as the owner of the session or place in the queue
LOCKS     named    the caller may touch each lock that the request names
          visible  the answer leaves out locks that the caller may not see
          all      the caller may see every lock
RIGHT     none     anybody; no credentials are needed
          known    the credentials must be known
          steal    the token, or the entry of the certificate, has 'steal = true'; root, and the
                   user who mounted, by a mount
          admin    the right 'steal' of a caller with credentials, or of one whom the kernel names
                   at a Unix socket
          cluster  the token, or the entry of the certificate, has 'cluster = true'
          node     the certificate of a node, or the secret that the nodes share

A server without --tokens and --client-ca knows every caller, who then has all rights but 'node'
and 'admin'. At its Unix socket, root and the user of the server have 'admin' as well.
A client certificate sees all locks, and has neither 'steal' nor 'cluster'. With
--certificate-rights, it has the rights of its entry in that file, and without an entry none.
A user of a mount speaks as that user's client; root, and the user who mounted, speak as any client
at the mount's socket.
";

/// The width of the column that lists the requests; a longer list continues on the next line.
const REQUESTS_COLUMN: usize = 40;

/// Formats the table of permissions, with its legend.
pub(super) fn table() -> String {
    let requests = requests();
    let mut text = String::new();
    line_of(&mut text, ["OPERATION", "CLIENT", "LOCKS", "RIGHT", "REQUESTS"]);
    for operation in Operation::ALL {
        let Rule { name, client, locks, right } = operation.rule();
        let own = requests.iter().filter(|(_, of)| of == operation);
        let lines = wrapped(own.map(|(request, _)| request.as_str()));
        let mut lines = lines.iter().map(String::as_str);
        let (client, locks, right) = (client.to_string(), locks.to_string(), right.to_string());
        line_of(&mut text, [name, &client, &locks, &right, lines.next().unwrap_or_default()]);
        lines.for_each(|more| line_of(&mut text, ["", "", "", "", more]));
    }
    text + "\n" + LEGEND
}

fn line_of(text: &mut String, [name, client, locks, right, requests]: [&str; 5]) {
    let line = format!("{name:<27}  {client:<6}  {locks:<15}  {right:<7}  {requests}");
    let _ = writeln!(text, "{}", line.trim_end());
}

/// Returns lines with the requests, each as long as the column is wide.
pub(super) fn wrapped<'a>(requests: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for request in requests {
        match lines.last_mut() {
            Some(line) if line.len() + request.len() < REQUESTS_COLUMN => {
                let _ = write!(line, ", {request}");
            }
            Some(line) => {
                line.push(',');
                lines.push(request.to_owned());
            }
            None => lines.push(request.to_owned()),
        }
    }
    lines
}

/// The requests that a program makes by system calls on files of a mount, as the client of its
/// user.
const FILES: [(&str, Operation); 10] = [
    ("cat", Operation::ShowLock),
    ("getxattr", Operation::ShowLock),
    ("ls", Operation::ListLocks),
    ("mkdir", Operation::Acquire),
    ("flock", Operation::Acquire),
    ("touch", Operation::Renew),
    ("setxattr", Operation::Renew),
    ("chmod", Operation::Annotate),
    ("rmdir", Operation::Release),
    ("mv", Operation::MoveLock),
];

/// Returns every request of every front end, with the operation that authorizes it.
fn requests() -> Vec<(String, Operation)> {
    let of_http = http::requests();
    let of_batch = http::batch_requests().into_iter().map(|(ask, of)| (format!("batch {ask}"), of));
    let of_line = line::WORDS.iter().map(|(word, of)| (format!("line {word}"), *of));
    let of_ctl = crate::control::ControlKind::ALL
        .map(|ask| (format!("ctl {}", ask.as_str()), ask.operation()));
    let of_files = FILES.map(|(form, of)| (format!("file {form}"), of));
    let of_peers = [("peer port".to_owned(), Operation::CallPeer)];
    let of_mounts = of_ctl.into_iter().chain(of_files);
    of_http.into_iter().chain(of_batch).chain(of_line).chain(of_mounts).chain(of_peers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_can_be_requested() {
        let requests = requests();
        for operation in Operation::ALL {
            assert!(requests.iter().any(|(_, of)| of == operation), "{operation:?}");
        }
    }
}
