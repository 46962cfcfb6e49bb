//! The changes of a tenure that ended without a marker: the guard that made them tells the others
//! what it left, or puts its versions aside if they went on without them.

use super::barrier::chain::ancestors;
use super::barrier::folder_path::FolderPath;
use super::barrier::handover::{Handover, HandoverEnd, HandoverKind, PreviousTenure, Remembered};
use super::barrier::late::{LateMarker, LateStep, copied_before, late_step};
use super::barrier::marker_name::MarkerKind;
use super::disk::Disk;
use super::folder_changes::{BarrierState, FolderBarrier};

/// Copies files of the folder to the lost files, all of them or none. The second argument is the
/// file of the late marker that will name them.
pub(crate) type KeepCopies<'a> = &'a dyn Fn(&[&FolderPath], Option<&str>) -> Result<(), String>;

/// The fate of the changes that no marker names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Late {
    /// There are none.
    Nothing,
    /// It is not known yet what to do with them: their tenure is about to end, or a file changed
    /// while a late marker was listed.
    Soon,
    /// It is not known what to do with them before another tenure sets a handover.
    Unknown,
    /// A late marker names them.
    Marked,
    /// The files were put aside: other machines have gone on without them.
    PutAside(usize),
}

impl<D: Disk> FolderBarrier<D> {
    /// Whether changes of an ended tenure may have to be told.
    pub(crate) fn may_have_late_changes(&self) -> bool {
        let state = self.state.lock();
        state.marking.is_none() && (!state.ledger.log().is_empty() || state.ledger.has_own())
    }

    /// Tells the others what an ended tenure of this machine left, or puts it aside. This machine
    /// has no tenure that is ready.
    pub(crate) fn late(
        &self,
        previous: &PreviousTenure,
        engine: u64,
        keep: KeepCopies<'_>,
    ) -> Result<Late, String> {
        let (step, is_open) = {
            let state = self.state.lock();
            let is_own = matches!(previous.handover,
                Remembered::Handover(handover) if state.ledger.is_unfinished(&handover));
            let is_open = is_own && previous.end == HandoverEnd::Open;
            (late_step(previous, engine, &state.ledger), is_open)
        };
        match step {
            LateStep::Nothing if is_open => Ok(Late::Soon),
            LateStep::Nothing => Ok(Late::Nothing),
            LateStep::Wait => Ok(Late::Unknown),
            LateStep::Write(late) => self.write_late(&late, keep),
            LateStep::PutAside(paths) => {
                keep(&paths.iter().collect::<Vec<_>>(), None)?;
                let mut state = self.state.lock();
                state.ledger.put_aside();
                state.save()?;
                Ok(Late::PutAside(paths.len()))
            }
        }
    }

    fn write_late(&self, late: &LateMarker, keep: KeepCopies<'_>) -> Result<Late, String> {
        let rules = self.rules();
        self.find_unrecorded(late)?;
        let ledger = self.state.lock().ledger.clone();
        let listed =
            self.list(&ledger, (MarkerKind::Marker, &rules), (late.tenure, late.number, true))?;
        // A program changes the folder past the view: the list is made again later.
        let Some((listing, marker)) = listed else { return Ok(Late::Soon) };
        let file_name = marker.link().map_err(|error| error.to_string())?.file_name();
        keep(&copied_before(&listing).collect::<Vec<_>>(), Some(&file_name))?;
        let link = self.write_marker(&marker)?;
        let mut state = self.state.lock();
        let BarrierState { ledger, .. } = &mut *state;
        ledger.ended_late(listing, link, late);
        state.save()?;
        drop(state);
        self.has_marked();
        Ok(Late::Marked)
    }

    /// Looks for a last marker of the tenure that this machine has written, and that its ledger
    /// does not know since the guard was killed in between. The late marker builds on it: of two
    /// that do not, nobody could tell which one is the last.
    fn find_unrecorded(&self, late: &LateMarker) -> Result<(), String> {
        let mut looking = self.looking.lock();
        self.read_markers(&mut looking, None)?;
        let files = looking.markers.files();
        let mut state = self.state.lock();
        let verified = state.ledger.verified();
        let own = files.last_of(late.tenure, late.number).into_iter().find(|link| {
            let marker = files.get(link);
            marker.is_some_and(|marker| {
                marker.previous == verified && marker.holder == self.names.holder
            })
        });
        if let Some(link) = own {
            state.ledger.build_on(link);
        }
        Ok(())
    }

    /// Returns those of the markers, by the names of their files, on which the markers build that
    /// the handover of the last tenure names.
    pub(super) fn built_on(&self, previous: &PreviousTenure, wanted: &[&str]) -> Vec<String> {
        let Remembered::Handover(Handover { kind: HandoverKind::Clean, marker, .. }) =
            previous.handover
        else {
            return Vec::new();
        };
        let looking = self.looking.lock();
        let chain = marker.into_iter().flat_map(|top| ancestors(looking.markers.files(), top));
        let links = chain.flat_map(|(link, marker)| [Some(link), marker.previous]).flatten();
        let names = links.map(|link| link.file_name());
        names.filter(|name| wanted.contains(&name.as_str())).collect()
    }
}
