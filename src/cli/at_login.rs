//! Guards, mounts and servers that start at login or at boot (`--at-login`): a systemd unit for
//! exactly one command line, on a Mac a launchd job.

use super::argument_types::{absolute, directory_variable, variable};
use super::exit::{CliError, CliResult};
use super::output;
use crate::storage::atomic_file::{Durable, replace};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, Command};
use kernel::machine_facts::{is_root, own_uid};
use serde_json::{Value, json};
use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

/// The options of a command that can start at login.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct AtLoginArgs {
    /// Start now and at each login, as a systemd unit of this user, on a Mac as a launchd agent; as
    /// root at each boot
    #[arg(long, conflicts_with = "no_at_login")]
    pub(super) at_login: bool,
    /// End what --at-login has started, and remove its unit
    #[arg(long)]
    pub(super) no_at_login: bool,
}

/// A command that starts at login.
#[derive(Debug)]
pub(super) struct LoginService {
    /// The command of latchfs.
    kind: &'static str,
    /// The directories at which it mounts.
    dirs: Vec<PathBuf>,
    /// What [`guards`] returns about it.
    about: Value,
    is_root: bool,
}

/// A command line with its environment, as a service manager starts it.
#[derive(Debug, Default)]
struct ServiceCommand {
    program: String,
    words: Vec<String>,
    environment: Vec<(String, String)>,
}

impl ServiceCommand {
    /// Returns the command line `args` of this program, whose options are those of `A`. All paths
    /// are absolute.
    fn own<A: clap::Args>(
        kind: &'static str,
        args: impl Iterator<Item = OsString>,
    ) -> CliResult<Self> {
        let global = |name| Arg::new(name).long(name).global(true);
        let own = A::augment_args(Command::new(kind));
        let all = Command::new("latchfs").subcommand(own.clone()).args([
            global("quiet").short('q').action(ArgAction::SetTrue),
            global("verbose").short('v').action(ArgAction::Count),
            global("log-format"),
        ]);
        let matches = all.get_matches_from(args);
        let Some((_, matches)) = matches.subcommand() else { return Ok(Self::default()) };
        let mut words = vec![kind.to_owned()];
        for arg in own.get_arguments() {
            let id = arg.get_id().as_str();
            if matches.value_source(id) != Some(ValueSource::CommandLine)
                || ["at_login", "background", "foreground"].contains(&id)
            {
                continue;
            }
            let option = arg.get_long().map(|long| format!("--{long}"));
            if !arg.get_action().takes_values() {
                words.extend(option);
                continue;
            }
            let is_path = id == "state" || matches.try_get_many::<PathBuf>(id).is_ok();
            let option = option.map(|option| option + "=").unwrap_or_default();
            for value in matches.get_raw(id).into_iter().flatten() {
                words.push(format!("{option}{}", fixed(value, is_path)?));
            }
        }
        let program = env::current_exe()
            .map_err(|error| CliError::system("the path of this program is not known", &error))?;
        Ok(Self { program: fixed(program.as_os_str(), true)?, words, environment: environment()? })
    }
}

/// The variables with paths and with other values on which commands depend, after `LATCHFS_`.
const PATHS: [&str; 6] = ["CONFIG", "DATA", "TOKEN_FILE", "CA", "CERT", "KEY"];
const OTHERS: [&str; 4] = ["SERVER", "PROFILE", "CLIENT", "PLAIN_TOKEN"];

/// Returns the variables on which commands depend.
fn environment() -> CliResult<Vec<(String, String)>> {
    let own = PATHS.iter().chain(&OTHERS).map(|name| format!("LATCHFS_{name}"));
    let all = own.chain(["XDG_STATE_HOME", "XDG_CONFIG_HOME"].map(str::to_owned));
    let set = all.filter_map(|name| Some((variable(&name)?, name)));
    let is_path = |name: &str| PATHS.iter().any(|path| name.strip_prefix("LATCHFS_") == Some(path));
    set.map(|(value, name)| Ok((fixed(&value, is_path(&name))?, name)).map(|(v, n)| (n, v)))
        .collect()
}

/// Returns a value as text. Paths become absolute, also in a list with `unix:PATH`.
fn fixed(value: &OsStr, is_path: bool) -> CliResult<String> {
    let Some(text) = value.to_str() else {
        let shown = value.display();
        return Err(CliError::usage(format!("{shown} is not UTF-8, so no unit can name it")));
    };
    if is_path && text != "none" {
        return Ok(absolute(Path::new(text))?.to_string_lossy().into_owned());
    }
    let part = |part: &str| match part.strip_prefix("unix:") {
        Some(path) => Ok(format!("unix:{}", absolute(Path::new(path))?.display())),
        None => Ok(part.to_owned()),
    };
    Ok(text.split(',').map(part).collect::<CliResult<Vec<_>>>()?.join(","))
}

/// Writes a word of a unit in quotes.
fn quoted(word: &str) -> String {
    let mut quoted = String::from("\"");
    for c in word.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '%' => quoted.push_str("%%"),
            c if c.is_ascii_control() => _ = write!(quoted, "\\x{:02x}", u32::from(c)),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

impl LoginService {
    pub(super) fn new(kind: &'static str, dirs: Vec<PathBuf>, about: Value) -> Self {
        Self { kind, dirs, about, is_root: is_root() }
    }

    /// Returns the name of the unit, in which the first directory stands as systemd-escape(1) has
    /// it.
    fn name(&self) -> String {
        let mut name = format!("latchfs-{}", self.kind);
        for byte in self.dirs.first().into_iter().flat_map(|dir| dir.as_os_str().as_bytes()) {
            match byte {
                b'/' => name.push('-'),
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' => name.push((*byte).into()),
                _ => _ = write!(name, "\\x{byte:02x}"),
            }
        }
        name
    }

    /// Returns the text of the systemd unit.
    fn unit(&self, command: &ServiceCommand) -> String {
        let ServiceCommand { program, words, environment } = command;
        // systemd replaces no variables in the path of the program.
        let program = quoted(program);
        let line = |words: &[String]| {
            let words = words.iter().map(|word| quoted(word).replace('$', "$$"));
            words.fold(program.clone(), |line, word| line + " " + &word)
        };
        let variables = environment.iter().map(|(name, value)| {
            let variable = quoted(&format!("{name}={value}"));
            format!("Environment={variable}\n")
        });
        let ends = self.dirs.iter().map(|dir| {
            let unmount = line(&["umount".to_owned(), dir.to_string_lossy().into_owned()]);
            format!("ExecStopPost=-{unmount}\n")
        });
        let (own, rights) = match self.kind {
            "guard" => (WATCHDOG, include_str!("at_login/rights_of_guard.txt")),
            "mount" => (RELOAD, include_str!("at_login/rights_of_mount.txt")),
            _ => (RELOAD, include_str!("at_login/rights_of_serve.txt")),
        };
        let (after, rights, target) = if self.is_root {
            (AFTER_BOOT, rights, "multi-user.target")
        } else {
            ("", "", "default.target")
        };
        let shown = self.dirs.iter().map(|dir| format!(" '{}'", dir.display()));
        let shown = output::harmless(&shown.collect::<String>()).replace('%', "%%");
        format!(
            include_str!("at_login/unit.txt"),
            kind = self.kind,
            about = self.about,
            title = format!("{}{shown}", self.kind),
            after = after,
            environment = variables.collect::<String>(),
            start = line(words),
            more = format!("{own}{}", ends.collect::<String>()),
            rights = rights,
            target = target,
        )
    }

    /// Returns the text of the launchd job.
    fn job(&self, command: &ServiceCommand) -> String {
        let ServiceCommand { program, words, environment } = command;
        let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;");
        let string = |text: &str| format!("        <string>{}</string>\n", escaped(text));
        let variable = |(name, value): &(String, String)| {
            format!("        <key>{name}</key>\n{}", string(value))
        };
        format!(
            include_str!("at_login/job.txt"),
            kind = self.kind,
            name = escaped(&self.name()),
            words = string(program) + &words.iter().map(|word| string(word)).collect::<String>(),
            environment = environment.iter().map(variable).collect::<String>(),
        )
    }

    /// Returns the file of the unit, or of the job.
    fn file(&self) -> CliResult<PathBuf> {
        let ending = if IS_MAC { "plist" } else { "service" };
        Ok(definitions_dir(self.is_root)?.join(format!("{}.{ending}", self.name())))
    }

    /// Starts this now, and at each login or boot from now on.
    pub(super) fn install<A: clap::Args>(&self) -> CliResult {
        if !has_manager() {
            return Err(CliError::unavailable(
                "systemd does not run here, so nothing can start at login; leave --at-login out, \
                 and have the service manager of this machine run the command",
            ));
        }
        let (file, command) = (self.file()?, ServiceCommand::own::<A>(self.kind, env::args_os())?);
        let shown = file.display();
        let failed = |error| CliError::system(&format!("{shown} can't be written"), &error);
        fs::create_dir_all(file.parent().unwrap_or(&file)).map_err(failed)?;
        let text = if IS_MAC { self.job(&command) } else { self.unit(&command) };
        let written = replace(&file, &[text.as_bytes()], Durable::Yes);
        let readable = Permissions::from_mode(0o644);
        written.and_then(|file| file.set_permissions(readable)).map_err(failed)?;
        self.start(&file)?;
        let when = match self.starts_at_boot() {
            Some(true) => "boot",
            Some(false) => {
                "login; for a start at boot, run 'loginctl enable-linger', which root and polkit \
                 permit"
            }
            None => "login",
        };
        output::line(&format!("latchfs: {shown} starts this at each {when}"))
    }

    fn start(&self, file: &Path) -> CliResult {
        let name = self.name();
        if IS_MAC {
            // A job that is loaded can't be loaded again.
            let _ = self.end();
            let domain = self.domain();
            return run(Process::new("launchctl").args(["bootstrap", &domain]).arg(file)).map(drop);
        }
        systemctl(self.is_root, &["daemon-reload"])?;
        systemctl(self.is_root, &["enable", "--quiet", &name])?;
        systemctl(self.is_root, &["restart", &name]).map(drop).map_err(|_| {
            let why = waits_for(self.is_root, &name);
            CliError::unavailable(format!("the unit {name} does not start yet: {why}"))
        })
    }

    fn end(&self) -> CliResult<String> {
        if IS_MAC {
            let job = format!("{}/{}", self.domain(), self.name());
            return run(Process::new("launchctl").args(["bootout", &job]));
        }
        systemctl(self.is_root, &["disable", "--quiet", "--now", &self.name()])
    }

    /// Returns the domain of the job in launchd.
    fn domain(&self) -> String {
        if self.is_root { "system".to_owned() } else { format!("gui/{}", own_uid()) }
    }

    /// Ends this, and removes its unit.
    pub(super) fn remove(&self) -> CliResult {
        let file = self.file()?;
        let shown = file.display();
        if !file.exists() {
            output::say(&format!("there is no {shown}, so nothing starts this at login"));
            return Ok(());
        }
        self.end()?;
        let removed = fs::remove_file(&file);
        removed.map_err(|error| CliError::system(&format!("{shown} can't be removed"), &error))?;
        output::line(&format!("latchfs: ended this, and removed {shown}"))
    }

    /// Whether this starts without a login; `None` where that can't be chosen. For a server, which
    /// others need, asks for it.
    fn starts_at_boot(&self) -> Option<bool> {
        if self.is_root || IS_MAC {
            return self.is_root.then_some(true);
        }
        let uid = own_uid().to_string();
        let loginctl = |words: &[&str]| run(Process::new("loginctl").args(words));
        if self.kind == "serve" {
            // If it is not permitted, the sentence about the unit names the command.
            let _ = loginctl(&["--no-ask-password", "enable-linger", &uid]);
        }
        let shown = loginctl(&["show-user", &uid, "--value", "-p", "Linger"]);
        Some(shown.is_ok_and(|shown| shown.trim() == "yes"))
    }
}

const IS_MAC: bool = cfg!(target_os = "macos");

/// The settings of a guard, which reports while its threads answer.
const WATCHDOG: &str = "WatchdogSec=60s\nWatchdogSignal=SIGKILL\nTimeoutAbortSec=5s\n";
/// The settings of a mount or a server, which reads its credentials again.
const RELOAD: &str = "ExecReload=/bin/kill -HUP $MAINPID\n";
const AFTER_BOOT: &str =
    "Wants=network-online.target\nAfter=local-fs.target network-online.target\n";

/// Whether there is a service manager that can start commands.
pub(super) fn has_manager() -> bool {
    IS_MAC || Path::new("/run/systemd/system").is_dir()
}

/// Returns the directory of the units or jobs of root, or of this user.
fn definitions_dir(is_root: bool) -> CliResult<PathBuf> {
    let below = |dir: &str| directory_variable("HOME").map(|home| home.join(dir));
    let config = || directory_variable("XDG_CONFIG_HOME").or_else(|| below(".config"));
    let dir = match (is_root, IS_MAC) {
        (true, true) => Some("/Library/LaunchDaemons".into()),
        (true, false) => Some("/etc/systemd/system".into()),
        (false, true) => below("Library/LaunchAgents"),
        (false, false) => config().map(|config| config.join("systemd/user")),
    };
    dir.ok_or_else(|| CliError::usage("there is no HOME, which has the units of this user; set it"))
}

/// Runs a program, and returns what it prints. The error has the last line that it prints.
fn run(command: &mut Process) -> CliResult<String> {
    let ran = command.output();
    let program = command.get_program().display();
    let ran = ran.map_err(|error| CliError::system(&format!("{program} can't be run"), &error))?;
    if ran.status.success() {
        return Ok(String::from_utf8_lossy(&ran.stdout).into_owned());
    }
    let why = String::from_utf8_lossy(&ran.stderr);
    let why = why.lines().last().unwrap_or("it does not say why");
    Err(CliError::unavailable(format!("{program} failed: {}", output::harmless(why))))
}

fn systemctl(is_root: bool, words: &[&str]) -> CliResult<String> {
    let mut command = Process::new("systemctl");
    if !is_root {
        command.arg("--user");
        if directory_variable("XDG_RUNTIME_DIR").is_none() {
            command.env("XDG_RUNTIME_DIR", format!("/run/user/{}", own_uid()));
        }
    }
    run(command.args(words))
}

/// Returns what a unit that does not run waits for: the error of its last start, or a start.
fn waits_for(is_root: bool, name: &str) -> String {
    let shown = systemctl(is_root, &["show", "-p", "ActiveState", "-p", "StatusText", name]);
    let shown = shown.unwrap_or_default();
    let field = |name| shown.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    let user = if is_root { "" } else { "--user " };
    match (field("StatusText="), field("ActiveState=")) {
        ("", "activating") => "its start".to_owned(),
        ("", _) => format!("a start, by: systemctl {user}start '{name}'"),
        (why, _) => output::harmless(why),
    }
}

/// Returns what the units of guards say about these, each with `unit` and `waits_for`: those of
/// root, or of this user.
pub(super) fn guards() -> Vec<Value> {
    let Ok(dir) = definitions_dir(is_root()) else { return Vec::new() };
    let guard = |file: fs::DirEntry| {
        let name = file.file_name().into_string().ok()?;
        let unit = name.strip_suffix(".service").filter(|it| it.starts_with("latchfs-guard-"))?;
        let text = fs::read_to_string(file.path()).ok()?;
        let about = text
            .lines()
            .find_map(|line| line.strip_prefix("# ").filter(|it| it.starts_with('{')))?;
        let mut about: Value = serde_json::from_str(about).ok()?;
        about["unit"] = json!(unit);
        about["waits_for"] = json!(waits_for(is_root(), unit));
        Some(about)
    };
    fs::read_dir(dir).into_iter().flatten().flatten().filter_map(guard).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn command(words: &[&str]) -> ServiceCommand {
        ServiceCommand {
            program: "/opt/a $b/latchfs".to_owned(),
            words: words.iter().map(|word| (*word).to_owned()).collect(),
            environment: vec![("LATCHFS_DATA".to_owned(), "/d \"%x\" <1>".to_owned())],
        }
    }

    #[test]
    fn a_unit_has_each_character_of_its_command() {
        let dirs = vec![PathBuf::from("/home/u/my %notes/5$\n\\")];
        let about = json!({"folder": "/a\nb"});
        let service = LoginService { kind: "guard", dirs, about, is_root: false };
        assert_eq!(service.name(), r"latchfs-guard-home-u-my\x20\x25notes-5\x24\x0a\x5c");
        let unit = service.unit(&command(&["guard", "/home/u/my %notes", "it's \"5$\"\n\\"]));
        let expected = r#"# Written by 'latchfs guard --at-login'; with --no-at-login it is removed.
# {"folder":"/a\nb"}
[Unit]
Description=latchfs: guard '/home/u/my %%notes/5$ \'
Documentation=man:latchfs(1)
StartLimitIntervalSec=0

[Service]
Type=notify
Environment="LATCHFS_DATA=/d \"%%x\" <1>"
ExecStart="/opt/a $b/latchfs" "guard" "/home/u/my %%notes" "it's \"5$$\"\x0a\\"
WatchdogSec=60s
WatchdogSignal=SIGKILL
TimeoutAbortSec=5s
ExecStopPost=-"/opt/a $b/latchfs" "umount" "/home/u/my %%notes/5$$\x0a\\"
# A server that can't be reached yet is waited for, and so is a folder.
Restart=on-failure
RestartSec=5s
TimeoutStopSec=15s
UMask=0077

[Install]
WantedBy=default.target
"#;
        assert_eq!(unit, expected);
    }

    #[test]
    fn a_unit_of_root_starts_at_boot_with_few_rights() {
        let dirs = Vec::new();
        let service = LoginService { kind: "serve", dirs, about: Value::Null, is_root: true };
        assert_eq!(service.name(), "latchfs-serve");
        let unit = service.unit(&command(&["serve", "--home"]));
        for line in [
            "After=local-fs.target network-online.target",
            "NoNewPrivileges=yes",
            "CapabilityBoundingSet=CAP_NET_BIND_SERVICE CAP_DAC_OVERRIDE",
            "WantedBy=multi-user.target",
        ] {
            assert!(unit.lines().any(|it| it == line), "{line} is not in {unit}");
        }
    }

    #[test]
    fn a_job_of_launchd_has_each_character_of_its_command() {
        let dirs = vec![PathBuf::from("/locks")];
        let service = LoginService { kind: "mount", dirs, about: Value::Null, is_root: false };
        let job = service.job(&command(&["mount", "/a & b<"]));
        for line in [
            "<string>latchfs-mount-locks</string>",
            "<string>/opt/a $b/latchfs</string>",
            "<string>/a &amp; b&lt;</string>",
            "<key>LATCHFS_DATA</key>",
            "<string>/d \"%x\" &lt;1></string>",
        ] {
            assert!(job.lines().any(|it| it.trim() == line), "{line} is not in {job}");
        }
    }

    #[derive(clap::Args)]
    #[allow(dead_code)] // read by clap alone
    struct Options {
        folder: PathBuf,
        #[arg(long, default_value = "host")]
        owner: String,
        #[arg(long = "yield")]
        yield_after: Option<String>,
        #[arg(long)]
        stage: Vec<PathBuf>,
        #[arg(long)]
        keep: bool,
        #[command(flatten)]
        login: AtLoginArgs,
    }

    #[test]
    fn a_service_has_the_command_line_with_absolute_paths() {
        let args = "latchfs -v guard a --yield -1s --at-login --keep --stage b --stage /c -q";
        let args = args.replace("--yield -1s", "--yield=-1s");
        let args = args.split(' ').map(OsString::from);
        let own = ServiceCommand::own::<Options>("guard", args).expect("valid");
        let here = env::current_dir().expect("there");
        let here = here.display();
        let stage = format!("--stage={here}/b");
        let folder = format!("{here}/a");
        let words = ["guard", &folder, "--yield=-1s", &stage, "--stage=/c", "--keep"];
        assert_eq!(own.words, words);
    }

    #[test]
    fn paths_of_a_command_become_absolute() {
        let here = env::current_dir().expect("there");
        let socket = fixed(OsStr::new("127.0.0.1:1,unix:a"), false).expect("text");
        assert_eq!(socket, format!("127.0.0.1:1,unix:{}/a", here.display()));
    }
}
