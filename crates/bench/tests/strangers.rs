//! Beside programs in namespaces of their own, administrators who change settings meanwhile, others that
//! start Nodewise too, and full disks: what was not asked for stays as it is, and nothing is left behind.

mod guests;

use guests::run;
use nodewise_rig::Guest;
use std::process::Command;

/// Every check says yes; each is a line on standard output.
const SCRIPT: &str = "
no() { ! \"$@\"; }
check() { name=$1; shift; if \"$@\"; then echo \"$name: yes\"; else echo \"$name: NO\"; fi; }
knobs=/sys/kernel/debug/sched/numa_balancing
balancing=/proc/sys/kernel/numa_balancing
look() { grep . $balancing $knobs/* >$1; }
changed() { look now; ! cmp -s now before; }
status() { check \"$1\" [ $? = $2 ]; }
journal=/run/nodewise/settings.json

# A container's program: user, mount and process namespaces of its own.
unshare -r -m -p -f $WORKLOAD private --bound --mebibytes 32 --seconds 100 --report /dev/null &
within 60 pidof workload >/dev/null; container=$(pidof workload)
$NODEWISE attach $container --duration 12 --json container.json 2>err; status 'attached to a container' 0
# Stopped, it uses no memory; that is no error.
kill -STOP $container
$NODEWISE attach $container --duration 2 --json stopped.json 2>err; status 'attached to a stopped process' 0
kill -KILL $container
$NODEWISE attach 2 2>err; status 'not to a thread of the kernel' 1; check 'and why' grep -q 'thread of the kernel' err

# An administrator changes settings while Nodewise runs.
sleep 1000 & target=$!
look before
$NODEWISE attach $target 2>err & nodewise=$!
within 60 changed; sleep 1
echo 12345 >$knobs/hot_threshold_ms; echo 54321 >$knobs/scan_period_max_ms; echo 0 >$balancing
kill -INT $nodewise; wait $nodewise; status 'ended' 0
check 'said' grep -q 'NUMA balancing was switched off meanwhile' err
check 'balancing as they set it' [ $(cat $balancing) = 0 ]
check 'scan period as they set it' [ $(cat $knobs/scan_period_max_ms) = 54321 ]
check 'another setting, too' [ $(cat $knobs/hot_threshold_ms) = 12345 ]
check 'the rest as before' [ \"$(cat $knobs/scan_period_min_ms $knobs/scan_size_mb)\" = \"1000
256\" ]
check 'no journal' [ ! -e $journal ]

# Four at the same moment, with balancing off: one changes the settings, and they are back when all have ended, in whichever order.
look before
for each in 1 2 3 4; do $NODEWISE attach $target --log log.$each 2>err.$each & done
within 60 changed; for each in 1 2 3 4; do within 60 [ -s log.$each ]; done
for each in $(pidof nodewise); do kill -INT $each; sleep 0.3; done
within 60 no pidof nodewise >/dev/null
check 'restored by all four' no changed; check 'no journal of theirs' [ ! -e $journal ]
kill $target

# Full disks.
$NODEWISE run --log /dev/full --json full.json -- sh -c 'sleep 2; exit 4' 2>err; status 'no room for the log' 4
check 'said once' [ $(grep -c 'the decision log ends here' err) = 1 ]; check 'but the summary' [ -s full.json ]
mkdir small; mount -t tmpfs -o size=4k tmpfs small; echo full >small/file
$NODEWISE run --json small/json -- sh -c 'exit 5' 2>err; status 'no room for the summary' 5
check 'said, too' grep -q 'cannot write small/json: No space left' err
check 'the text is there' grep -q 'seconds managed by policy' err
check 'nothing half-written' [ \"$(ls -A small)\" = file ]
check 'restored at last' no changed

# In a directory that all may write to, a stranger's link and a stranger's file.
echo 1 >/proc/sys/fs/protected_symlinks; echo 1 >/proc/sys/fs/protected_regular
mkdir shared; chmod 1777 shared; (umask 077; echo kept >of-root); echo kept >shared/file
ln -s ../of-root shared/link; chown -h nobody shared/link shared/file
$NODEWISE run -q --json shared/link -- true 2>err; status 'not by their link' 1
check 'what it led to' [ $(cat of-root) = kept ]; check 'and why' grep -q 'cannot write shared/link: Permission denied' err
$NODEWISE run -q --json shared/file -- true 2>err; status 'nor their file' 1; check 'it is kept' [ $(cat shared/file) = kept ]
chown nobody of-root
$NODEWISE run -q --json of-root -- true 2>err; status 'a file that is theirs elsewhere' 0
check 'stays theirs' [ \"$(stat -c '%U %a' of-root)\" = 'nobody 600' ]; check 'and is written' grep -q sampler of-root
";

#[test]
fn everybody_elses_things_stay_theirs() {
    let files = ["container.json", "stopped.json", "err"];
    let f = run(Guest::uniform(2, 1, 384 << 20), SCRIPT, &files);
    let said: Vec<&str> = f.stdout.lines().collect();
    assert!(said.len() == 29 && said.iter().all(|line| line.ends_with(": yes")), "{f:?}");
    let container = f.json("container.json").unwrap();
    assert!(container["samples"].as_u64() > Some(0), "{container}");
    // The kernel moves nothing of it, so what was moved was moved by Nodewise.
    assert!(container["pages_moved"].as_u64() > Some(0), "{container}");
    let stopped = f.json("stopped.json").unwrap();
    assert_eq!(stopped["pages_moved"], 0, "{stopped}");
}

/// As systemd's own unit, in a container of the guest's, where systemd is process 1. Each check is a line.
const SERVICE: &str = r#"
# Its /run and its /tmp are its own.
units=/etc/systemd/system; mkdir -p $units
sed "s,/usr/bin/nodewise,$(command -v nodewise)," UNIT >$units/nodewise@.service
cat >$units/busy.service <<END
[Service]
ExecStart=WORKLOAD private --mebibytes 16 --seconds 600 --report /var/report
Restart=always
END
cat >/var/script <<'END'
failed() { echo "$1: NO"; systemctl status --no-pager 'nodewise@*' busy; }
check() { name=$1; shift; if "$@"; then echo "$name: yes"; else failed "$name"; fi; }
within() { n=$1; shift; until "$@"; do n=$((n - 1)); [ $n -gt 0 ] || return 1; sleep 1; done; }
main() { systemctl show --property=MainPID --value $1; }
attached() { tr '\0' ' ' <"/proc/$(main nodewise@busy)/cmdline" | grep -q " attach $(main busy) "; }
placed() { tail -n 1 /var/report | grep -q 'local_percent":\(99\|100\)'; }
balancing() { [ $(cat /proc/sys/kernel/numa_balancing) = $1 ]; }
systemctl enable nodewise@busy
check 'not before its service' [ $(main nodewise@busy) = 0 ]
systemctl start busy
check 'with its service' within 30 attached
check 'its memory is placed' within 60 placed
first=$(main busy); kill -KILL $first
check 'it begins anew' within 30 sh -c "[ \$(systemctl show --property=MainPID --value busy) -gt $first ]"
check 'and so does Nodewise' within 30 attached
check 'its memory is placed again' within 60 placed
check 'by hint faults' balancing 1
systemctl stop busy
check 'Nodewise ends with it' within 30 sh -c '! systemctl --quiet is-active nodewise@busy'
check 'and well' [ "$(systemctl show --property=Result --value nodewise@busy)" = success ]
check 'the setting is put back' balancing 0
END
cat >$units/checks.service <<'END'
[Service]
Type=oneshot
StandardOutput=file:/var/checks
StandardError=inherit
ExecStart=/bin/sh /var/script
ExecStopPost=/bin/systemctl exit 0
END
printf '[Unit]\nWants=checks.service\n' >$units/only.target
echo 0 >/proc/sys/kernel/numa_balancing
export container=guest
timeout 200 unshare --pid --fork --mount --mount-proc /lib/systemd/systemd --unit=only.target
cat /var/checks
"#;

#[test]
fn a_service_is_managed_from_its_start_to_its_end() {
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../nodewise/install/nodewise@.service");
    let workload = guests::programs().workload.to_str().unwrap();
    let script = SERVICE.replace("UNIT", unit).replace("WORKLOAD", workload);
    let mut rig = Command::new(&guests::programs().nodewise);
    rig.args(["rig", "--nodes", "2", "--time-limit", "300", "--with", "systemd"]);
    let output = rig.args(["--copy", unit, "--copy", workload, "--", "sh", "-c", &script]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let checks: Vec<&str> =
        said.lines().filter(|line| line.ends_with(": yes") || line.ends_with(": NO")).collect();
    assert!(checks.len() == 10 && checks.iter().all(|line| line.ends_with(": yes")), "{output:?}");
}
