//! The options for access control and TLS of a server.
//!
//! The `cert` command: a small certificate authority for the machines of a home.
//!
//! `serve --print-permissions`: prints the table by which every front end authorizes requests.

use crate::auth::permissions::{Operation, Rule};
use crate::auth::{AllowedHosts, Credentials, OpenTo, TlsFiles};
use crate::cli::argument_types::{absolute, host_name};
use crate::cli::exit::{CliError, CliResult};
use crate::cli::output;
use crate::engine::{Grace, Ttl};
use crate::server::http::ca::{CertFiles, CertSubject};
use crate::server::http::{HttpConfig, Listen, ca};
use crate::server::{http, line};
use crate::shares::{LoweredLimits, SharePercent};
use clap::{Subcommand, ValueEnum};
use std::fmt::Write;
use std::path::PathBuf;

/// The options for access control and TLS of a server.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct AccessArgs {
    /// Bearer tokens and what each may do, in TOML; read again at SIGHUP
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// Encrypt by this certificate, in PEM; read again at SIGHUP
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Let clients show certificates that this one has signed
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    client_ca: Option<PathBuf>,
    /// The rights of client certificates, in TOML, without which a certificate has none; read again
    /// at SIGHUP
    #[arg(long, value_name = "FILE", requires = "client_ca")]
    certificate_rights: Option<PathBuf>,
    /// Refuse the certificates with these serial numbers, one a line in hex; read again at SIGHUP
    #[arg(long, value_name = "FILE")]
    pub(super) refuse_serials: Option<PathBuf>,
    /// A name or an address by which clients call this server, besides the host's name and those
    /// in the certificate
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    name: Vec<String>,
    /// Be open to a network without tokens, without TLS, or without both
    #[arg(long, value_name = "WITHOUT", value_enum, num_args = 0..=1, require_equals = true,
        default_missing_value = "both")]
    insecure: Option<Insecure>,
    /// The most of each limited table that one credential, or one address without any, may take
    #[arg(long, value_name = "PERCENT", default_value = "50", value_parser = SharePercent::parse)]
    share: SharePercent,
}

/// The value of `--insecure`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Insecure {
    /// Callers need credentials, but others on the network can read them
    NoTls,
    /// Connections are encrypted, but everybody on the network may do everything
    NoCredentials,
    /// Neither
    Both,
}

impl AccessArgs {
    /// Returns the part of each limited table that one identity may take.
    pub(in crate::cli) const fn share(&self) -> SharePercent {
        self.share
    }

    /// Whether callers must authenticate.
    pub(in crate::cli) const fn identifies(&self) -> bool {
        self.tokens.is_some() || self.client_ca.is_some()
    }

    /// Returns the name by which other nodes find this machine: the first one that was given, or
    /// the host name.
    pub(super) fn node_host(&self) -> String {
        self.name.first().cloned().unwrap_or_else(|| host_name().trim().to_owned())
    }

    /// Returns the names and addresses by which clients may call the server.
    pub(super) fn own_names(&self) -> Vec<String> {
        let host = host_name().trim().to_owned();
        let own = if host.is_empty() { vec![] } else { vec![format!("{host}.local"), host] };
        let known = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
        own.into_iter().chain(known).chain(self.name.iter().cloned()).collect()
    }

    /// Returns the access configuration of a server that listens at `listen`. Its paths are
    /// absolute, because a daemon may change its working directory.
    pub(in crate::cli) fn config(
        &self,
        listen: Vec<Listen>,
        ttl: Ttl,
        grace: Grace,
    ) -> CliResult<HttpConfig> {
        let whole = |path: &Option<PathBuf>| path.as_deref().map(absolute).transpose();
        let tls = match (whole(&self.tls_cert)?, whole(&self.tls_key)?) {
            (Some(cert), Some(key)) => {
                Some(TlsFiles { cert, key, client_ca: whole(&self.client_ca)? })
            }
            _ => None,
        };
        let refused = whole(&self.refuse_serials)?;
        let hosts = AllowedHosts(self.own_names());
        let (tokens, rights) = (whole(&self.tokens)?, whole(&self.certificate_rights)?);
        let credentials = Credentials {
            tokens,
            tls,
            rights,
            machine_rights: None,
            refused,
            joins: false,
            watched: Vec::new(),
            hosts,
        };
        let share = self.share;
        let insecure = OpenTo {
            readers: matches!(self.insecure, Some(Insecure::NoTls | Insecure::Both)),
            callers: matches!(self.insecure, Some(Insecure::NoCredentials | Insecure::Both)),
        };
        Ok(HttpConfig {
            listen,
            ttl,
            grace,
            credentials,
            insecure,
            share,
            limits: LoweredLimits::default(),
            release_on_node_removal: false,
            home: None,
        })
    }
}

/// The arguments of `latchfs cert`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct CertArgs {
    /// Where keys and certificates are kept
    #[arg(long, value_name = "DIR", default_value = "latchfs-certs", global = true)]
    dir: PathBuf,
    #[command(subcommand)]
    what: CertCommand,
}

#[derive(Debug, Subcommand)]
enum CertCommand {
    /// The authority itself: copy ca.pem to every machine, and keep ca.key private
    Ca,
    /// A server, under the names and addresses by which clients find it
    Server {
        /// Names and addresses, such as box.local 192.168.1.2
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
    },
    /// A node, under the names and addresses by which other nodes find it
    Peer {
        /// Names and addresses, such as box1.local 192.168.1.2; the files have the first
        #[arg(value_name = "NAME", required = true, value_parser = file_name)]
        names: Vec<String>,
    },
    /// A secret for all nodes of a cluster, instead of a certificate for each: peers.pem
    Secret,
    /// A client: it may act as NAME, and as NAME:USER
    Client {
        /// The client, such as laptop1
        #[arg(value_name = "NAME", value_parser = file_name)]
        name: String,
    },
}

/// Parses the name of a peer or client, which also becomes the name of its files.
fn file_name(text: &str) -> Result<String, &'static str> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match text {
        "" | "ca" | "server" | "peers" => {
            Err("this name is taken by the authority, the server or the secret of all nodes")
        }
        _ if text.starts_with(['.', '-']) || !text.chars().all(is_fine) || text.len() > 64 => {
            Err("a name has letters, digits, '-', '_' and '.', 64 at most")
        }
        _ => Ok(text.to_owned()),
    }
}

pub(in crate::cli) fn run(args: &CertArgs) -> CliResult {
    let whose = match &args.what {
        CertCommand::Ca => CertSubject::Authority,
        CertCommand::Server { names } => CertSubject::Server(names.clone()),
        CertCommand::Peer { names } => CertSubject::Peer(names.clone()),
        CertCommand::Secret => {
            let file = ca::make_secret(&args.dir);
            let file = file.map_err(|error| CliError::unavailable(error.to_string()))?;
            return output::line(&format!("made {}", file.display()));
        }
        CertCommand::Client { name } => CertSubject::Client(name.clone()),
    };
    let CertFiles { cert, key } =
        ca::make(&args.dir, &whose).map_err(|error| CliError::unavailable(error.to_string()))?;
    output::line(&format!("made {} and {}", cert.display(), key.display()))
}

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

A token with 'clients = []' may do what needs no client, and registers no follower: it reads.
A server without --tokens and --client-ca knows every caller, who then has all rights but 'node'
and 'admin'. At its Unix socket, root and the user of the server have 'admin' as well.
A client certificate sees all locks, and has neither 'steal' nor 'cluster'. With
--certificate-rights, it has the rights of its entry in that file, and without an entry none.
With --home, a client certificate is that of a machine that has joined and was not removed; nobody
but root and the user of the server, at its Unix socket, has 'steal', 'admin' and 'cluster'.
A user of a mount speaks as that user's client; root, and the user who mounted, speak as any client
at the mount's socket.
";

/// The width of the column that lists the requests; a longer list continues on the next line.
const REQUESTS_COLUMN: usize = 40;

/// Formats the table of permissions, with its legend.
pub(in crate::cli) fn table() -> String {
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
pub(in crate::cli) fn wrapped<'a>(requests: impl Iterator<Item = &'a str>) -> Vec<String> {
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
