//! Stores the last known addresses of other nodes in `peers.json`, so that a node which was offline
//! can reach the cluster again. The file is only a hint: the voters are always those in the log.

use super::node_address::NodeAddress;
use super::types::{ClusterId, NodeId};
use crate::base::said;
use crate::storage::atomic_file::{Durable, replace};
use crate::time::{Span, Time, Wall};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The record of a node that has not answered for this long is deleted.
const FORGET_AFTER: Span = Span::from_secs(24 * 3_600);
/// The interval at which the file is written if only the times have changed.
const WRITE_EVERY: Span = Span::from_secs(600);
/// The highest number of nodes in the file: more than a cluster ever has.
const NODES_MAX: usize = 64;

/// The addresses at which other nodes were last reached.
pub(super) struct PeerStore {
    path: PathBuf,
    cluster: ClusterId,
    pages: BTreeMap<NodeId, PeerRecord>,
    written: Option<Time>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct PeerRecord {
    station: NodeAddress,
    /// When the node last answered, on the boot clock.
    seen: Time,
}

impl PeerStore {
    /// Reads `peers.json` in a data directory. Every node in it counts as seen now. An unreadable
    /// file counts as empty: the addresses are also in the log, and in the seeds.
    pub(super) fn open(dir: &Path, cluster: ClusterId, now: Time) -> Self {
        let path = dir.join("peers.json");
        let pages = match fs::read(&path) {
            Ok(bytes) => read(&bytes, cluster, now).unwrap_or_else(|| {
                log::warn!("{} can't be understood, and is begun anew", path.display());
                BTreeMap::new()
            }),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    log::warn!("{}: {}", path.display(), said(&error));
                }
                BTreeMap::new()
            }
        };
        Self { path, cluster, pages, written: None }
    }

    /// Returns the peer addresses of all stored nodes.
    pub(super) fn addresses(&self) -> impl Iterator<Item = &str> {
        self.pages.values().map(|page| &*page.station.address)
    }

    /// Notes that a node has answered at this address.
    pub(super) fn see(&mut self, id: NodeId, station: NodeAddress, now: Time) {
        let is_known = self.pages.get(&id).is_some_and(|page| page.station == station);
        if is_known || self.pages.len() < NODES_MAX || self.pages.contains_key(&id) {
            self.pages.insert(id, PeerRecord { station, seen: now });
        }
        if !is_known {
            self.written = None;
        }
    }

    /// Deletes the records of nodes that have not answered for long, and writes the file if a
    /// record has changed or a write is due.
    pub(super) fn keep(&mut self, now: Time) {
        let before = self.pages.len();
        self.pages.retain(|_, page| now.since(page.seen) < FORGET_AFTER);
        let is_due = self.written.is_none_or(|at| now.since(at) >= WRITE_EVERY);
        if before == self.pages.len() && !is_due {
            return;
        }
        self.written = Some(now);
        let text = format!("{:#}\n", self.to_json(now, Wall::now()));
        if let Err(error) = replace(&self.path, &[text.as_bytes()], Durable::Yes) {
            // The file is only a hint, so an error is not fatal.
            log::warn!("{}: {}", self.path.display(), said(&error));
        }
    }

    fn to_json(&self, now: Time, wall: Wall) -> Value {
        let page = |(id, page): (&NodeId, &PeerRecord)| {
            let ago = i64::try_from(now.since(page.seen).as_millis() / 1_000).unwrap_or(i64::MAX);
            json!({
                "id": id,
                "name": &*page.station.name,
                "address": &*page.station.address,
                "url": &*page.station.url,
                "last_seen": wall.secs.saturating_sub(ago),
            })
        };
        let peers: Vec<_> = self.pages.iter().map(page).collect();
        json!({ "cluster": self.cluster.to_string(), "peers": peers })
    }
}

fn read(bytes: &[u8], cluster: ClusterId, now: Time) -> Option<BTreeMap<NodeId, PeerRecord>> {
    let book: Value = serde_json::from_slice(bytes).ok()?;
    if book["cluster"] != cluster.to_string() {
        return None;
    }
    let page = |page: &Value| {
        let text = |field: &str| page[field].as_str();
        let station = NodeAddress::new(text("address")?, text("url")?, text("name")?)?;
        Some((page["id"].as_u64()?, PeerRecord { station, seen: now }))
    };
    book["peers"].as_array()?.iter().take(NODES_MAX).map(page).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn station(n: u64) -> NodeAddress {
        NodeAddress::new(&format!("10.0.0.{n}:7100"), "http://x:1", "box").expect("sound")
    }

    #[test]
    fn a_node_is_remembered_for_a_day() {
        let dir = std::env::temp_dir().join(format!("latchfs-book-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("the temporary directory can be written");
        let (cluster, hour) = (ClusterId(7), |n: u64| Time::from_secs(n * 3_600));
        let mut book = PeerStore::open(&dir, cluster, hour(1));
        book.see(3, station(3), hour(1));
        book.see(5, station(5), hour(20));
        book.keep(hour(20));
        // Opening the file counts as having seen all nodes in it, so node 3 is not dropped,
        // although it was last seen long ago.
        let mut again = PeerStore::open(&dir, cluster, hour(30));
        assert_eq!(again.addresses().collect::<Vec<_>>(), ["10.0.0.3:7100", "10.0.0.5:7100"]);
        again.see(5, station(6), hour(40));
        again.keep(hour(54));
        assert_eq!(again.addresses().collect::<Vec<_>>(), ["10.0.0.6:7100"]);
        let last = PeerStore::open(&dir, cluster, hour(55));
        assert_eq!(last.addresses().count(), 1);
        // The file of another cluster counts as empty.
        assert_eq!(PeerStore::open(&dir, ClusterId(8), hour(55)).addresses().count(), 0);
        fs::write(dir.join("peers.json"), "{").expect("it can be written");
        assert_eq!(PeerStore::open(&dir, cluster, hour(55)).addresses().count(), 0);
        let _ = fs::remove_dir_all(&dir);
    }

    #[test]
    fn the_number_of_nodes_is_limited() {
        let dir = std::env::temp_dir().join(format!("latchfs-nodes-{}", std::process::id()));
        let mut book = PeerStore::open(&dir, ClusterId(7), Time::ZERO);
        for id in 0..=NODES_MAX as NodeId {
            book.see(id, station(id), Time::ZERO);
        }
        assert_eq!(book.addresses().count(), NODES_MAX);
        let mut text = book.to_json(Time::ZERO, Wall::now());
        let last = text["peers"][0].clone();
        text["peers"].as_array_mut().expect("a list").push(last);
        let again = read(text.to_string().as_bytes(), ClusterId(7), Time::ZERO);
        assert_eq!(again.map(|pages| pages.len()), Some(NODES_MAX));
    }
}
