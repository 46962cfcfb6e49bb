//! The request of `guard take`, with which a person takes the lock, or takes it along.

use super::super::wish::{Denied, WishOf};
use super::folder_view::{FolderView, MayWait};
use crate::engine::Ttl;
use crate::fuse::kernel::pending::pending;
use crate::fuse::kernel::values::Requester;
use crate::time::Span;
use serde_json::{Value, json};
use std::path::Path;

/// The longest wait of a `take`, in milliseconds: a day.
const TAKE_WAIT_MS_MAX: u64 = 24 * 3_600 * 1_000;

impl FolderView {
    /// Carries out a request for the lock. Returns the answer as JSON.
    pub(super) async fn take_request(&self, who: Requester, asked: &Value) -> Value {
        if let Err(why) = self.prepare_away(&asked["for_ms"]).await {
            return json!({"error": why});
        }
        let patience = asked["wait_ms"].as_u64().unwrap_or(0).min(TAKE_WAIT_MS_MAX);
        let patience = Span::from_millis(patience);
        let session = || crate::holder_id::session_of(who.pid);
        let owner = self.policy.owner.of(who.uid, session);
        let taken = match self.wait_for_tenure(who, (owner, WishOf::Person), patience).await {
            Some(Ok(())) => self.announce_away(who).await,
            Some(Err(why)) => Err(why),
            None => Err("the wait was interrupted".to_owned()),
        };
        match taken {
            Ok(()) => self.status(who),
            Err(why) => {
                if !asked["for_ms"].is_null() {
                    self.tenures.stay();
                }
                json!({"error": why})
            }
        }
    }

    /// Prepares a tenure that is taken along for as many milliseconds as `length` says, if it says
    /// anything. Returns a sentence if that can't be.
    async fn prepare_away(&self, length: &Value) -> Result<(), String> {
        if length.is_null() {
            return Ok(());
        }
        let length = Span::from_millis(length.as_u64().unwrap_or(u64::MAX / 1_000_000));
        let length = Ttl::new(length).map_err(|why| why.to_string())?;
        let (promise, prepared) = pending();
        self.tenures.prepare_away(length, move |answer| promise.keep(answer));
        let prepared = prepared.await.unwrap_or(Ok(()));
        prepared.map_err(|Denied { sentence }| sentence)
    }

    /// Tells the lock service that changes follow, if the lock was taken along: later it may be out
    /// of reach.
    async fn announce_away(&self, who: Requester) -> Result<(), String> {
        if self.tenures.away_until().is_none() || !self.guard.gate().must_announce() {
            return Ok(());
        }
        let announced = self.announce(who, Path::new("."), MayWait::Long).await;
        announced.map_err(|_| self.refused.text(who.uid))
    }
}
