//! The `cluster` command: shows the nodes of a cluster, promotes and removes nodes, and transfers
//! leadership.

use super::backup_restore;
use crate::cli::connect::credential_options;
use crate::cli::connect::credential_options::ServerKeyArgs;
use crate::cli::connect::target::home_server;
use crate::cli::exit::{CliError, CliResult, Exit};
use crate::cli::output;
use crate::cli::status_table::aligned;
use crate::service::unavailable::MAJORITY_ADVICE;
use crate::time::Span;
use clap::Subcommand;
use serde_json::Value;

/// Timeout of a membership change, which may have to send the whole state to a new node.
const PATIENCE: Span = Span::from_secs(70);
/// Timeout of a query, which a server answers without waiting for other nodes for long.
const STATUS_PATIENCE: Span = Span::from_secs(10);

const HEAD: [&str; 11] = [
    "ID",
    "NAME",
    "ROLE",
    "PEERS AT",
    "CLIENTS AT",
    "TERM",
    "LOG",
    "APPLIED",
    "LAG",
    "SYNC",
    "HEARD",
];

/// The arguments of `latchfs cluster`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct ClusterArgs {
    #[command(subcommand)]
    what: ClusterCommand,
    /// A node's server; of several, separated by commas, the first that answers [env:
    /// `LATCHFS_SERVER`] [default: that of the configuration file, or else this machine's: the one
    /// of 'serve --home', or port 8080]
    #[arg(long, value_name = "URL", global = true)]
    server: Option<String>,
    #[command(flatten)]
    key: ServerKeyArgs,
    /// Print the answer as JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum ClusterCommand {
    /// Show all nodes, and how each stands
    Status {
        /// Also a sum of all that each knows: nodes that have applied the same entry have the same
        #[arg(long)]
        state: bool,
    },
    /// Show the requests that a node has not answered yet, with their age and place
    Pending,
    /// Promote a learner to a voter
    #[command(visible_alias = "join")]
    Promote {
        /// The number of the node
        #[arg(value_name = "ID")]
        id: u64,
        /// Also when that makes an even number of voters, which is worse than one less
        #[arg(long)]
        force: bool,
    },
    /// Have the node that is asked leave the others, and end
    Leave,
    /// Remove a node, also one that is gone for good
    Remove {
        /// The number of the node
        #[arg(value_name = "ID")]
        id: u64,
    },
    /// End all holds and waits of clients
    ///
    /// The holders are notified, the reason is logged, and for a second no client may use the
    /// locks; then the next waiters get them. Needs credentials that may steal and see all locks.
    Reset(backup_restore::ResetArgs),
    /// Grant locks now, although a server that began without its old leases grants nothing yet
    ///
    /// After 'cluster restore', 'cluster recover' and a start without state, nothing is granted for
    /// some time, because a client may still rely on an old lease. This ends that time: say by
    /// --reason how you know that no such client is left. Needs credentials that may steal and see
    /// all locks.
    GrantNow(backup_restore::GrantNowArgs),
    /// Write all that the server knows to a file, while it goes on
    Backup(backup_restore::BackupArgs),
    /// Begin a new cluster from a backup, when all nodes of the old one are lost
    ///
    /// No lease of the backup continues: other clients may have got the locks since. New tokens are
    /// above all earlier ones. For some time no lock is granted, because a client may still rely on
    /// a lease of the lost servers. The old servers must be gone for good.
    Restore(backup_restore::RestoreArgs),
    /// Begin a new cluster from the data of one node, when a majority of the nodes is lost
    ///
    /// For this no backup is needed. As after a restore nothing is held, tokens go on above all
    /// earlier ones, and for some time no lock is granted. What the lost nodes alone knew is lost.
    /// The old nodes must never run again: the one of this data does not.
    Recover(backup_restore::RecoverArgs),
    /// Let another node lead
    Transfer {
        /// The number of the node [default: the one that is best fit]
        #[arg(value_name = "ID")]
        id: Option<u64>,
    },
}

pub(in crate::cli) fn run(args: &ClusterArgs) -> CliResult {
    match &args.what {
        ClusterCommand::Status { state } => {
            let path = if *state { "/cluster?state=true" } else { "/cluster" };
            let report = args.request("GET", path)?;
            if args.json { output::json(&report) } else { output::write(&table(&report)) }
        }
        ClusterCommand::Pending => {
            let report = args.request("GET", "/cluster/pending")?;
            if args.json { output::json(&report) } else { output::write(&pending(&report)) }
        }
        ClusterCommand::Promote { id, force } => {
            let path = format!("/cluster/nodes/{id}/promote?force={force}");
            let changed = args.change("POST", &path, &format!("node {id} votes"));
            changed.map_err(|error| args.unless_unknown(*id, error))
        }
        ClusterCommand::Leave => {
            let report = args.request("GET", "/cluster")?;
            let id = report["asked"].as_u64().unwrap_or_default();
            let path = format!("/cluster/nodes/{id}");
            args.change("DELETE", &path, &format!("node {id} has left, and ends"))
        }
        ClusterCommand::Remove { id } => {
            let path = format!("/cluster/nodes/{id}");
            let changed = args.change("DELETE", &path, &format!("node {id} is removed"));
            changed.map_err(|error| args.unless_unknown(*id, error))
        }
        ClusterCommand::Reset(reset) => backup_restore::reset(reset, &args.servers()?, &args.key),
        ClusterCommand::GrantNow(now) => {
            backup_restore::grant_now(now, &args.servers()?, &args.key)
        }
        ClusterCommand::Backup(backup) => {
            backup_restore::back_up(backup, &args.servers()?, &args.key)
        }
        ClusterCommand::Restore(restore) => backup_restore::restore(restore),
        ClusterCommand::Recover(recover) => backup_restore::recover(recover),
        ClusterCommand::Transfer { id } => {
            let to = id.map_or_else(String::new, |id| format!("?to={id}"));
            let path = format!("/cluster/transfer{to}");
            let changed = args.change("POST", &path, "another node leads");
            changed.map_err(|error| match id {
                Some(id) => args.unless_unknown(*id, error),
                None => error,
            })
        }
    }
}

impl ClusterArgs {
    /// Returns the URLs of the servers to ask, as a comma-separated list.
    fn servers(&self) -> CliResult<String> {
        if let Some(server) = &self.server {
            return Ok(server.clone());
        }
        if let Some(configured) = self.key.default_server()? {
            return Ok(configured.value);
        }
        Ok(home_server().unwrap_or_else(|| "http://127.0.0.1:8080".to_owned()))
    }

    fn change(&self, method: &str, path: &str, done: &str) -> CliResult {
        let answer = self.request(method, path)?;
        if self.json { output::json(&answer) } else { output::line(done) }
    }

    /// Returns the error of a refused change, or that of a wrong argument if there is no node `id`.
    fn unless_unknown(&self, id: u64, error: CliError) -> CliError {
        let CliError::Said(Exit::Conflict, _) = &error else { return error };
        let Ok(report) = self.request("GET", "/cluster") else { return error };
        let nodes = report["nodes"].as_array().into_iter().flatten();
        let known: Vec<_> = nodes.filter_map(|node| node["id"].as_u64()).collect();
        if known.is_empty() || known.contains(&id) {
            return error;
        }
        let list: Vec<_> = known.iter().map(u64::to_string).collect();
        CliError::usage(format!(
            "there is no node {id}; the nodes are {}, and 'latchfs cluster status' shows them",
            list.join(", ")
        ))
    }

    /// Sends a request to each of the given servers in turn, and returns the answer of the first
    /// server that answers.
    fn request(&self, method: &str, path: &str) -> CliResult<Value> {
        let patience = if method == "GET" { STATUS_PATIENCE } else { PATIENCE };
        let answer =
            credential_options::ask_first(&self.servers()?, &self.key, method, path, patience);
        answer.map(|(_, answer)| answer)
    }
}

/// Formats the cluster's report as a table for people.
fn table(report: &Value) -> String {
    let nodes: Vec<_> = report["nodes"].as_array().into_iter().flatten().collect();
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(nodes.iter().map(|node| row(node)));
    let mut lines = aligned(&rows, None);
    lines.extend(remarks(report, &nodes));
    lines.join("\n") + "\n"
}

/// Formats the pending requests of a node as a table.
fn pending(report: &Value) -> String {
    let mut rows = vec![["PLACE", "AGE", "STAGE", "COMMAND", "LOCK", "CLIENT"].map(str::to_owned)];
    for request in report["pending"].as_array().into_iter().flatten() {
        let text = |field: &str| request[field].as_str().map_or("-".to_owned(), output::harmless);
        let (place, age) = (request["place"].to_string(), format!("{}ms", request["age_ms"]));
        rows.push([place, age, text("stage"), text("command"), text("name"), text("client")]);
    }
    match rows.len() {
        1 => format!("node {} has no pending request\n", report["asked"]),
        _ => aligned(&rows, None).join("\n") + "\n",
    }
}

fn row(node: &Value) -> [String; HEAD.len()] {
    let text = |field: &str| match node[field].as_str() {
        None | Some("") => "-".to_owned(),
        Some(text) => output::harmless(text),
    };
    let number = |field: &str| node[field].as_u64().map_or("-".to_owned(), |n| n.to_string());
    let reachable = node["reachable"].as_bool().unwrap_or_default();
    let known = |field: &str| if reachable { number(field) } else { "-".to_owned() };
    let heard = match (reachable, node["heard_ms_ago"].as_u64()) {
        (true, _) => "now".to_owned(),
        (false, Some(ms)) => format!("{} ago", Span::from_millis(ms)),
        (false, None) => "no answer".to_owned(),
    };
    let (term, applied) = (known("term"), known("applied"));
    let (id, log, sync) =
        (number("id"), number("last_log"), if reachable { syncs(node) } else { "-".to_owned() });
    let (name, role) = (text("name"), text("role"));
    let (peers, clients, lag) = (text("address"), text("url"), number("lag"));
    [id, name, role, peers, clients, term, log, applied, lag, sync, heard]
}

/// Formats a node's fsync latency: the median and the maximum.
fn syncs(node: &Value) -> String {
    let millis = |field: &str| {
        let hundredths = node[field].as_u64()?.div_ceil(10);
        Some(format!("{}.{:02}", hundredths / 100, hundredths % 100))
    };
    let both = millis("sync_median_us").zip(millis("sync_worst_us"));
    both.map_or("-".to_owned(), |(median, worst)| format!("{median}-{worst}ms"))
}

/// Returns the remark that nothing is granted yet, if the report says so.
fn not_granting(report: &Value) -> Option<String> {
    let said = report["hold_off"]["detail"].as_str().map(output::harmless)?;
    Some(format!(
        "{said}; if no client relies on an old lease any more, end that with 'latchfs cluster \
         grant-now --reason WHY'"
    ))
}

/// Whether a node in the cluster's report is a voter, so that it counts for the quorum.
pub(in crate::cli) fn votes(node: &Value) -> bool {
    matches!(node["role"].as_str(), Some("leader" | "voter" | "candidate"))
}

/// Returns the remarks that are printed below the table of nodes.
fn remarks(report: &Value, nodes: &[&Value]) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some((leader, ms)) = report["leader"].as_u64().zip(report["elected_ms_ago"].as_u64()) {
        let (span, seen) = (Span::from_millis(ms), &report["elections"]);
        let times = if *seen == 1 { "election" } else { "elections" };
        let asked = &report["asked"];
        lines.push(format!(
            "node {leader} has led for {span}; node {asked} has seen {seen} {times} since its start"
        ));
    }
    let voters: Vec<_> = nodes.iter().filter(|node| votes(node)).collect();
    let there = voters.iter().filter(|node| node["reachable"] == true).count();
    let majority = voters.len() / 2 + 1;
    lines.extend(not_granting(report));
    let has_majority = there >= majority;
    if report["leader"].is_null() && has_majority {
        lines.push("no leader: no lock is granted, and none expires".to_owned());
    }
    match voters.len() {
        0 | 1 => {}
        count if !has_majority => lines.push(format!(
            "the cluster has no majority: {there} of {count} voters answer, and {majority} are \
             needed, so nothing is granted, and none can be removed; {MAJORITY_ADVICE}"
        )),
        2 => lines.push("both voters are needed; with three, one may fail".to_owned()),
        count => {
            let spare = there - majority;
            lines.push(format!("{there} of {count} voters answer; {spare} more may fail"));
        }
    }
    for node in nodes.iter().filter(|node| node["reachable"] == false) {
        let id = &node["id"];
        let why = output::harmless(node["trouble"].as_str().unwrap_or_default());
        // Without a majority no node can be removed.
        let advice = if has_majority {
            format!(
                "; if its data is lost, remove it by 'latchfs cluster remove {id}', and let it \
                 join as a new node"
            )
        } else {
            String::new()
        };
        lines.push(format!("node {id} does not answer ({why}){advice}"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn report_is_formatted_as_a_table() {
        let node = |id, role: &str, reachable: bool| {
            json!({
                "id": id, "name": "box", "role": role, "address": "10.0.0.1:7100",
                "url": "http://10.0.0.1:8080", "term": 3, "last_log": 12, "applied": 12, "lag": 0,
                "sync_median_us": 412, "sync_worst_us": 12_030, "reachable": reachable,
                "trouble": "connection refused", "heard_ms_ago": 4_000,
            })
        };
        let nodes =
            json!([node(1, "leader", true), node(7, "voter", true), node(9, "voter", false)]);
        let text = table(&json!({
            "leader": 1, "asked": 7, "elections": 2, "elected_ms_ago": 90_000, "nodes": nodes,
        }));
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("ID  NAME  ROLE"), "{text}");
        assert!(lines[1].ends_with("3     12   12       0    0.42-12.03ms  now"), "{text}");
        assert!(lines[3].ends_with("-     12   -        0    -             4s ago"), "{text}");
        let led = "node 1 has led for 1m30s; node 7 has seen 2 elections since its start";
        assert_eq!(lines[4], led);
        assert_eq!(lines[5], "2 of 3 voters answer; 0 more may fail");
        assert!(lines[6].contains("remove 9"), "{text}");
        let held_off = json!({ "hold_off": { "detail": "nothing is granted before then" } });
        let text = table(&held_off);
        assert!(text.contains("nothing is granted before then; if no client"), "{text}");
        let two = json!([node(1, "voter", false), node(7, "voter", true)]);
        let text = table(&json!({ "leader": null, "nodes": two }));
        let said = "the cluster has no majority: 1 of 2 voters answer";
        assert!(text.contains(said) && text.contains("latchfs cluster recover"), "{text}");
        assert!(!text.contains("cluster remove"), "{text}");
    }
}
