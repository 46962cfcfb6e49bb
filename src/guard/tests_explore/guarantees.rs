//! The guarantees that are checked at each change of the folder, and at each event of a guard.

use super::replay::Told;
use super::storage::{FOLDER, Inode, LOST, STAGES, Storage};
use super::world::World;
use std::collections::BTreeMap;

/// The files of the folder: for each name the inode and the content.
pub(super) type Folder = BTreeMap<String, (Inode, Vec<u8>)>;

/// Returns the files of the folder.
pub(super) fn folder(storage: &Storage) -> Folder {
    let owned = |(name, (inode, content)): (&str, (Inode, &[u8]))| {
        (name.to_owned(), (inode, content.to_vec()))
    };
    storage.files_in(FOLDER).into_iter().map(owned).collect()
}

/// Returns the content of a file, which may have been renamed.
fn content_of<'a>(files: &'a Folder, file: &str) -> Option<&'a [u8]> {
    let moved = files.get("D").filter(|_| file == "C");
    files.get(file).or(moved).map(|(_, content)| &content[..])
}

/// Returns the tenure whose version of a file a content is, if it is a whole version.
pub(super) fn version(content: &[u8]) -> Option<u8> {
    match content {
        [_, first, second] if first == second && first.is_ascii_digit() => Some(first - b'0'),
        _ => None,
    }
}

/// Returns the version of a file in the folder. Each tenure renames its B.new to B.
fn visible(world: &World, file: &str) -> u8 {
    let files = world.storage.files_in(FOLDER);
    let there = |name: &str| files.get(name).and_then(|(_, content)| version(content));
    let renamed = match file {
        "B.new" => there("B"),
        "C" => there("D"),
        _ => None,
    };
    there(file).max(renamed).unwrap_or_default()
}

/// Returns the newest version of a file that is or was in the folder.
fn newest(world: &World, file: &str) -> u8 {
    visible(world, file).max(world.saved.get(file).copied().unwrap_or_default())
}

/// Checks a change of the folder by a guard.
pub(super) fn check_change(
    world: &World,
    tenure: u8,
    before: &Folder,
    after: &Folder,
) -> Result<(), String> {
    if tenure < world.opened {
        let opened = world.opened;
        return Err(format!(
            "tenure {tenure} changes the folder after tenure {opened} has begun: {before:?} to \
             {after:?}"
        ));
    }
    for file in ["A", "B", "C"] {
        let content = |files: &Folder| content_of(files, file).map(<[u8]>::to_vec);
        let Some(now) = content(after) else {
            // The file is in the stage for a moment.
            if file == "C" && world.is_moved {
                continue;
            }
            return Err(format!("{file} is gone"));
        };
        let Some(now) = version(&now) else {
            return Err(format!("{file} is {now:?}, which is no whole version"));
        };
        let earlier = content(before).and_then(|content| version(&content)).unwrap_or_default();
        if file != "C" && now < earlier {
            return Err(format!("{file} goes back from version {earlier} to {now}"));
        }
        let saved = world.saved.get(file).copied().unwrap_or_default();
        if now < saved {
            return Err(format!("{file} is version {now}, but version {saved} was saved"));
        }
    }
    Ok(())
}

/// Checks an event of a guard.
pub(super) fn check_told(world: &mut World, guard: usize, told: &Told) -> Result<(), String> {
    let tenure = world.guards[guard].tenure;
    match told {
        Told::Opened => {
            let is_in_time = world.now < world.guards[guard].until;
            let stages = world.storage.names_in(STAGES);
            let late = |name: &&&str| !world.late_stages.contains(**name);
            let left = stages.iter().filter(late).count();
            if is_in_time && left != 1 {
                return Err(format!("tenure {tenure} begins beside the stages {stages:?}"));
            }
            let files = folder(&world.storage);
            let is_gone = |file: &&str| content_of(&files, file).is_none();
            if is_in_time && let Some(gone) = ["A", "B", "C"].into_iter().find(is_gone) {
                return Err(format!("tenure {tenure} finds {gone} gone"));
            }
            for (file, saved) in &world.saved {
                let now = visible(world, file);
                if is_in_time && now < *saved {
                    return Err(format!("tenure {tenure} finds {file} {now}, {saved} was saved"));
                }
            }
            world.opened = world.opened.max(tenure);
            Ok(())
        }
        Told::Saved(file) => {
            if world.planted.is_some() {
                // The foreign version may have replaced it.
                return Ok(());
            }
            let newest = newest(world, file);
            if newest < tenure {
                return Err(format!("{file} of tenure {tenure} was saved, but is {newest}"));
            }
            let saved = world.saved.entry(file).or_default();
            *saved = tenure.max(*saved);
            Ok(())
        }
        Told::Refused(file) => {
            let content = format!("{}{tenure}{tenure}", &file[..1]).into_bytes();
            let is_kept = [FOLDER, LOST]
                .into_iter()
                .any(|dir| world.storage.files_in(dir).values().any(|(_, kept)| *kept == content));
            if is_kept || world.planted.is_some() || newest(world, file) > tenure {
                Ok(())
            } else {
                Err(format!("{file} of tenure {tenure} is neither in the folder nor lost"))
            }
        }
        Told::Ended => {
            world.storage.close_all(guard);
            let process = &mut world.guards[guard];
            (process.tenure, process.until) = (0, 0);
            Ok(())
        }
        Told::Failed(reason) => Err(format!("guard {guard}: {reason}")),
    }
}
