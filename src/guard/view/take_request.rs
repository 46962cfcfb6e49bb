//! The request of `guard take`, with which a person takes the lock, or takes it along.

use super::super::guard_request::refused;
use super::super::wish::{Denied, WishOf};
use super::folder_view::{FolderView, MayWait};
use crate::engine::Ttl;
use crate::fuse::kernel::file_system::Requester;
use crate::fuse::kernel::task::pending;
use crate::time::Span;
use serde_json::Value;
use std::path::Path;

impl FolderView {
    /// Carries out a request for the lock. Returns the answer as JSON.
    pub(super) async fn take_request(
        &self,
        who: Requester,
        patience: Span,
        away: Option<Result<Ttl, String>>,
    ) -> Value {
        let is_away = away.is_some();
        if let Some(length) = away
            && let Err(why) = self.prepare_away(length).await
        {
            return refused(why);
        }
        let owner = self.policy.owner.of(who.uid, who.pid);
        let taken = match self.wait_for_tenure(who, (owner, WishOf::Person), patience).await {
            Some(Ok(())) => self.announce_away(who).await,
            Some(Err(why)) => Err(why),
            None => Err("the wait was interrupted".to_owned()),
        };
        match taken {
            Ok(()) => self.status(who),
            Err(why) => {
                if is_away {
                    self.tenures.stay();
                }
                refused(why)
            }
        }
    }

    /// Prepares a tenure that is taken along for so long. Returns a sentence if that can't be.
    async fn prepare_away(&self, length: Result<Ttl, String>) -> Result<(), String> {
        self.tenures.uses.check_unused()?;
        let (length, (promise, prepared)) = (length?, pending());
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
        announced.map_err(|_| self.refused.last(who.uid))
    }
}
