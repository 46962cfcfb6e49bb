//! The machines of a document: network namespaces with host names and an ordinary user each, on
//! which the blocks below `<!-- on NAME -->` are run as printed. The machines that have a laptop's
//! name share the folder `notes` by Syncthing.
//!
//! A command that stays in the foreground runs in the background here, and a code that the server
//! shows reaches `latchfs join` by its standard input.

use super::{Shell, Step, are_alike};
use std::fs;
use testing::Scratch;
use testing::net::{Machine, Net};

/// The user of each machine.
const USER: u32 = 54_321;
/// The commands that stay in the foreground.
const FOREGROUND: [&str; 2] = ["latchfs serve --home", "latchfs invite"];
/// How often the output of such a command is read, until it is as shown.
const LOOKS_MAX: usize = 200;
/// The words before a code.
const CODE: &str = "type this code there: ";

/// Makes the user's home, and what fusermount3 needs, in the namespaces of a machine. Its arguments
/// are the name, the directory of all machines, the user, and the directory of the program.
const SETUP: &str = "set -e; name=$1; all=$2; user=$3; home=$all/$name
hostname $name; mkdir $home; cd $all
mount --bind hosts /etc/hosts
mknod $name.fuse c 10 229; chmod 666 $name.fuse; mount --bind $name.fuse /dev/fuse
mount -t fusectl fusectl /sys/fs/fuse/connections
{ cat /etc/passwd; echo alice:x:$user:$user::$home:/bin/sh; } >$name.passwd
mount --bind $name.passwd /etc/passwd
chown $user $home; cd $home
exec setpriv --reuid=$user --regid=$user --clear-groups env -i HOME=$home USER=alice \\
    LC_ALL=C.UTF-8 PATH=$4:$PATH STNOUPGRADE=1 STNODEFAULTFOLDER=1 sh";

/// Makes the keys of a Syncthing that talks to no other machine than the laptops, and starts it.
const SYNCTHING: &str = "syncthing generate --no-default-folder --skip-port-probing >/dev/null 2>&1
config=.config/syncthing/config.xml
for option in globalAnnounceEnabled localAnnounceEnabled relaysEnabled natEnabled \\
    crashReportingEnabled; do sed -i \"s,<$option>true<,<$option>false<,\" $config; done
sed -i 's,<urAccepted>0<,<urAccepted>-1<,;s,<listenAddress>default<,<listenAddress>tcp://:22000<,
s,<reconnectionIntervalS>60<,<reconnectionIntervalS>1<,
s,<address>127.0.0.1:[0-9]*,<address>127.0.0.1:8384,' $config
mkdir -p notes/.stfolder; syncthing -device-id >../$HOSTNAME.id
syncthing serve --no-browser >syncthing.log 2>&1 &
key=$(sed -n 's,.*<apikey>\\(.*\\)</apikey>.*,\\1,p' $config)
rest() { curl -sf -H \"X-API-Key: $key\" -d \"$2\" http://127.0.0.1:8384/rest/$1; }
until rest system/ping >/dev/null; do sleep 0.2; done";

/// Shares the folder with another laptop.
const SHARE: &str = r#"id=$(cat ../$OTHER.id)
rest config/devices "{\"deviceID\": \"$id\", \"addresses\": [\"tcp://$OTHER:22000\"]}"
rest config/folders "{\"id\": \"notes\", \"path\": \"$HOME/notes\", \"fsWatcherDelayS\": 1,
    \"pullerPauseS\": 1, \"devices\": [{\"deviceID\": \"$id\"}]}""#;

/// The machines of one document.
pub(crate) struct Machines {
    /// Dropped before the namespaces in which they run.
    shells: Vec<(String, Shell)>,
    /// The last code that a server has shown.
    code: String,
    _net: Net,
    _scratch: Scratch,
}

impl Machines {
    /// Starts the machines that the steps name.
    pub(crate) fn of(steps: &[Step]) -> Self {
        let mut names: Vec<_> = steps.iter().filter_map(|step| step.machine.clone()).collect();
        // Syncthing has another side, although a document may run nothing there.
        names.extend(names.contains(&"laptop1".to_owned()).then(|| "laptop2".to_owned()));
        names.sort();
        names.dedup();
        let (mut net, scratch) = (Net::new(), Scratch::open_to_all());
        let machines: Vec<_> = names.iter().map(|_| net.machine()).collect();
        let host = |(name, machine): (&String, &Machine)| {
            format!("{} {name} {name}.local\n", machine.address)
        };
        let hosts: String = names.iter().zip(&machines).map(host).collect();
        let hosts = format!("127.0.0.1 localhost\n{hosts}");
        fs::write(scratch.join("hosts"), hosts).expect("a fresh directory");
        let start =
            |(name, machine): (&String, &Machine)| (name.clone(), start(name, machine, &scratch));
        let mut shells: Vec<_> = names.iter().zip(&machines).map(start).collect();
        let laptops: Vec<_> = names.iter().filter(|name| name.starts_with("laptop")).collect();
        for script in [SYNCTHING, SHARE] {
            for (name, shell) in shells.iter_mut().filter(|(name, _)| laptops.contains(&name)) {
                for other in laptops.iter().filter(|other| **other != name) {
                    shell.run(&format!("HOSTNAME={name} OTHER={other}"));
                    assert_eq!(shell.run(script), [""; 0], "Syncthing on {name}");
                }
            }
        }
        Self { shells, code: String::new(), _net: net, _scratch: scratch }
    }

    /// Runs a step on its machine, and returns its output.
    pub(crate) fn run(&mut self, step: &Step) -> Vec<String> {
        let name = step.machine.as_ref().expect("a step of a machine");
        let (_, shell) = self.shells.iter_mut().find(|(it, _)| it == name).expect("it runs");
        let command = &step.command;
        if command.starts_with("latchfs join ") {
            return shell.run(&format!("echo {} | {command}", self.code));
        }
        if !FOREGROUND.iter().any(|words| command.starts_with(words)) {
            return shell.run(command);
        }
        let out = format!("out{}", step.line);
        shell.run(&format!("{command} >{out} 2>&1 &"));
        // If the output is never as shown, the caller says what it is.
        let mut seen = vec![];
        for _ in 0..LOOKS_MAX {
            seen = shell.run(&format!("cat {out}"));
            if are_alike(&step.output, &seen) {
                break;
            }
            shell.run("sleep 0.1");
        }
        if let Some((_, code)) = seen.iter().find_map(|line| line.split_once(CODE)) {
            code.clone_into(&mut self.code);
        }
        seen
    }
}

fn start(name: &str, machine: &Machine, scratch: &Scratch) -> Shell {
    let mut command = machine.command("unshare");
    command.args(["--mount", "--propagation", "private", "--uts", "--ipc", "--pid", "--fork"]);
    command.args(["--kill-child", "--mount-proc", "sh", "-c", SETUP, "sh", name]);
    let own = testing::latchfs_path().rsplit_once('/').expect("a path").0;
    command.arg(scratch.path()).arg(USER.to_string()).arg(own);
    Shell::start(command, scratch.join(name))
}
