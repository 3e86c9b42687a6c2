//! Every kernel setting that Nodewise touches is put back: on exit, on signals, and after `kill -9` at the
//! next start.

mod guests;

use guests::run;
use nodewise_rig::Guest;

/// `look NAME` notes the settings in NAME; `changed` and `restored` compare them with those noted as
/// `before`.
const FUNCTIONS: &str = "
look() { grep . /proc/sys/kernel/numa_balancing /sys/kernel/debug/sched/numa_balancing/* >$1; }
restored() { look now; cmp -s now before; }
changed() { ! restored; }
journal=/run/nodewise/settings.json
# Without the values that settings were given since, which are more and more.
originals() { sed '/written/,$d' $journal; }
# Settings are changed one after another, and each is in the journal first.
settled() { originals >journal; sleep 1; [ \"$(originals)\" = \"$(cat journal)\" ]; }
check() { name=$1; shift; if \"$@\"; then echo \"$name: yes\"; else echo \"$name: NO\"; cat before now; fi; }
no() { ! \"$@\"; }
# is_nice PID NICENESS
is_nice() { [ \"$(cut -d' ' -f19 /proc/$1/stat)\" = $2 ]; }
";

/// Runs a script of checks, all of which must say yes.
#[track_caller]
fn all_hold(script: &str, checks: usize) -> String {
    let finished = run(
        Guest::uniform(2, 1, 384 << 20).copy("/usr/bin/env"),
        &format!("{FUNCTIONS}{script}"),
        &["doctor"],
    );
    let said: Vec<&str> = finished.stdout.lines().filter(|line| line.contains(": ")).collect();
    assert!(said.iter().all(|line| line.ends_with(": yes")), "{finished:?}");
    assert_eq!((finished.status, said.len()), (0, checks), "{finished:?}");
    finished.file("doctor").unwrap_or_default().to_owned()
}

#[test]
fn settings_come_back_after_exit_signals_and_failure() {
    let script = "
        look before
        # The program itself waits until it is watched.
        started() { $how $NODEWISE \"$@\" 2>/dev/null & nodewise=$!; within 60 changed; check \"watched\" changed; }

        started run -- sh -c 'while [ ! -e end ]; do sleep 0.1; done'
        check 'one journal' [ -s $journal ]
        check 'goes first' within 10 is_nice $nodewise -10
        check 'its program does not' is_nice $(cat /proc/$nodewise/task/$nodewise/children) 0
        touch end; wait $nodewise; check 'status 0' [ $? = 0 ]
        check 'after exit' restored; check 'no journal after exit' [ ! -e $journal ]

        for signal in TERM HUP INT; do
            # A script has INT ignored by what it starts in the background.
            how=\"/usr/bin/env --default-signal=$signal\"; started run -- sleep 100; how=
            kill -$signal $nodewise; wait $nodewise; check \"status of $signal\" [ $? -gt 128 ]
            check \"after $signal\" restored
        done
        started run -- sleep 100
        kill -INT $nodewise; sleep 1; check 'INT is ignored' kill -0 $nodewise
        kill $nodewise; wait $nodewise; check 'after INT' restored

        sleep 100 & target=$!
        for signal in TERM HUP INT; do
            started attach $target
            kill -$signal $nodewise; wait $nodewise; check \"attach ends well on $signal\" [ $? = 0 ]
            check \"attach, after $signal\" restored
        done
        kill $target

        $NODEWISE run -- no-such-program 2>/dev/null; check 'no program' [ $? = 127 ]
        check 'after a failed start' restored; check 'no journal at the end' [ ! -e $journal ]

        # Balancing was off: it is on while it is needed.
        echo 0 >/proc/sys/kernel/numa_balancing; look before
        balancing() { [ $(cat /proc/sys/kernel/numa_balancing) = $1 ]; }
        started attach $$
        check 'switched on' balancing 1
        kill $nodewise; wait $nodewise; check 'switched off again' balancing 0; check 'and the rest' restored";
    all_hold(script, 6 + 1 + 3 * 3 + 3 + 3 * 3 + 3 + 4);
}

#[test]
fn what_kill_9_leaves_is_put_back_by_the_next_start_and_two_do_not_disturb_each_other() {
    let script = "
        echo 0 >/proc/sys/kernel/numa_balancing; look before
        sleep 1000 & target=$!
        for next in \"run -- true\" \"attach $target --duration 1\" \"run -- no-such-program\"; do
            $NODEWISE attach $target 2>/dev/null & nodewise=$!
            within 60 changed
            kill -9 $nodewise; wait $nodewise
            check 'killed' changed; check 'the journal stays' [ -s $journal ]
            $NODEWISE doctor >doctor 2>&1
            check 'doctor names it' grep -q 'left changed by nodewise' doctor
            $NODEWISE $next 2>/dev/null
            check \"after $next\" restored; check 'the journal is gone' [ ! -e $journal ]
        done

        # The second leaves the first's settings alone, whoever ends first.
        $NODEWISE attach $target 2>/dev/null & first=$!
        within 60 changed
        within 20 settled
        $NODEWISE run -- sh -c 'true' 2>err; check 'the second runs' [ $? = 0 ]
        check 'the first is still there' kill -0 $first
        check 'its journal too' [ \"$(originals)\" = \"$(cat journal)\" ]
        kill $first; wait $first; check 'first ended' restored

        $NODEWISE attach $target 2>/dev/null & first=$!
        within 60 changed
        $NODEWISE run --json second.json -- sh -c 'until [ -e end ]; do sleep 0.1; done' & second=$!
        sleep 2; check 'the first has the settings' grep -q \"pid.: $first,\" $journal
        kill $first; wait $first; within 60 grep -q \"pid.: $second,\" $journal
        check 'the second takes them over' [ $? = 0 ]; within 60 changed; check 'and changes them' [ $? = 0 ]
        touch end; wait $second; check 'the second goes on to its end' [ $? = 0 ]
        check 'both have ended' restored; check 'no journal at the end' [ ! -e $journal ]

        # The first may rest. The second's program is placed all the same.
        $WORKLOAD local --mebibytes 16 --seconds 100 --report /dev/null & local=$!
        $NODEWISE attach $local 2>/dev/null & first=$!
        period() { [ $(cat /sys/kernel/debug/sched/numa_balancing/scan_period_min_ms) $1 10000 ]; }
        within 60 period -gt; check 'the first rests' [ $? = 0 ]
        slices=\"$WORKLOAD private --mebibytes 16 --seconds 30 --after-placed 1 --report placed\"
        $NODEWISE run -- $slices 2>/dev/null & second=$!
        within 10 period -lt; check 'no longer' [ $? = 0 ]
        wait $second; check 'placed' [ $(tail -n 1 placed | grep -cE 'local_percent.:(99|100)') = 1 ]
        within 60 period -gt; check 'it rests again' [ $? = 0 ]
        $NODEWISE attach $local --duration 1 2>err
        check 'it is said to manage' grep -q \"$local is managed already, by process $first\" err
        kill $first $local; wait $first; check 'put back by the first' restored

        # A container has a /run of its own, where there is no journal. The settings are the first one's all the same.
        $NODEWISE attach $target 2>/dev/null & first=$!
        within 60 changed
        kill -STOP $first
        size=/sys/kernel/debug/sched/numa_balancing/scan_size_mb; of_first=$(cat $size); echo 123 >$size
        unshare -m sh -c 'mkdir -p /run; mount -t tmpfs none /run; exec \"$0\" run --json second.json -- true' $NODEWISE 2>/dev/null
        check 'the container runs' [ $? = 0 ]
        check 'leaves them' grep -q 'scan rate left to another Nodewise' second.json
        echo $of_first >$size; kill -CONT $first; kill $first; wait $first
        check 'the first put back' restored

        # One is killed: others have no right to put settings back, and can do without.
        $NODEWISE attach $target 2>/dev/null & first=$!
        within 60 changed
        kill -9 $first; wait $first
        echo -1 >/proc/sys/kernel/perf_event_paranoid
        chmod 755 .; su nobody -s /bin/sh -c \"$NODEWISE run -- sh -c 'exit 3'\" 2>err; check \"a user's program runs\" [ $? = 3 ]
        check 'a note' grep -q 'nodewise: .* root.s next start puts them back' err
        check 'said once' [ $(grep -c 'next start' err) = 1 ]
        $NODEWISE run -- true 2>/dev/null; check 'root puts them back' restored

        # The first is killed: the second, which ends last, puts back what it left.
        rm -f end
        $NODEWISE attach $target 2>/dev/null & first=$!
        within 60 changed
        $NODEWISE run --json second.json -- sh -c ': >begun; until [ -e end ]; do sleep 0.1; done' & second=$!
        within 60 [ -e begun ]
        kill -9 $first; wait $first; check 'the first was killed' changed
        touch end; wait $second; check 'the second goes on to its own end' [ $? = 0 ]
        check 'the last one puts back' restored; check 'no journal is left' [ ! -e $journal ]

        # No journal can be written: programs are managed all the same, and no setting is changed.
        echo 1 >/proc/sys/kernel/numa_balancing; look before
        mkdir -p /run; mount -t tmpfs -o ro none /run
        grab='grep . /proc/sys/kernel/numa_balancing /sys/kernel/debug/sched/numa_balancing/*'
        $NODEWISE run --json unwritten.json -- sh -c \"sleep 3; $grab >now; exit 3\" 2>err
        check 'status without a journal' [ $? = 3 ]
        check 'nothing is changed' cmp now before
        check 'a warning' grep -q 'Read-only file system.*kernel settings stay as they are' err
        check 'samples' grep -q '\"sampler\": \"hint-faults\"' unwritten.json
        umount /run

        # Nor can the summary be written.
        $NODEWISE run -- sh -c 'echo ran; exit 3' >out 2>/dev/full; check 'status without a summary' [ $? = 3 ]
        check 'it ran' grep -q ran out; check 'settings' restored";
    all_hold(script, 3 * 5 + 4 + 6 + 6 + 3 + 4 + 4 + 4 + 3);
}
