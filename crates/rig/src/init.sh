#!/.rig/busybox sh
# The guest's first process. The serial lines are: ttyS0 the kernel's console; ttyS1 and ttyS2 the program's
# standard output and error (both on ttyS1 where they are joined), or ttyS1 its terminal; ttyS3 one line when the guest is up and one with the
# exit status.
/.rig/busybox mount -t proc proc /proc
/.rig/busybox --install -s /bin 2>/dev/null # files copied from the host stay
# This script's own commands are busybox's, whatever the guest has besides.
/.rig/busybox mkdir /.rig/bin
/.rig/busybox --install -s /.rig/bin
export PATH=/.rig/bin
programs=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts -o ptmxmode=0666 devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
ln -s /proc/self/fd /dev/fd
ln -s /proc/self/fd/0 /dev/stdin
ln -s /proc/self/fd/1 /dev/stdout
ln -s /proc/self/fd/2 /dev/stderr
mount -t debugfs debugfs /sys/kernel/debug
mount -t tracefs tracefs /sys/kernel/tracing
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ip link set lo up
hostname guest

for line in 1 2 3; do
    stty -F /dev/ttyS$line 115200 raw -echo
done
if [ -e /.rig/terminal ]; then
    exec 3<>/dev/ttyS1 # open from now on: what comes for a closed line is lost
    stty -F /dev/ttyS1 sane
    stty -F /dev/ttyS1 $(cat /.rig/terminal)
fi
# The kernel still does this and that after the boot, which a modelled machine takes longer for.
if [ -e /.rig/model ]; then sleep 1; fi
exec 4<>/dev/ttyS3 # open from now on: what comes for a closed line is lost
echo up >&4
# The model takes over in a CPU's pause, and each nap makes one.
if [ -e /.rig/model ]; then
    while [ ! -e /.rig/begun ]; do usleep 10000; done &
    read go <&4
    : >/.rig/begun # a process that ends by itself is seen to end
    wait
fi
exec 4>&-

if [ -e /.rig/terminal ]; then
    PATH=$programs /.rig/bin/setsid -c /.rig/bin/sh -c '. /.rig/command' <&3 >&3 2>&3 3>&-
    status=$?
    out=0 err=0
else
    # Pipes, not serial lines, so that the program does not take its output for a terminal.
    mkfifo /.rig/out /.rig/err
    cat /.rig/out >/dev/ttyS1 &
    out=$!
    cat /.rig/err >/dev/ttyS2 &
    err=$!
    if [ -e /.rig/joined ]; then
        (PATH=$programs; . /.rig/command) </.rig/stdin 3>/.rig/err >/.rig/out 2>&1 3>&-
    else
        (PATH=$programs; . /.rig/command) </.rig/stdin >/.rig/out 2>/.rig/err
    fi
    status=$?
fi

exec 3>&-
# Processes that the program left running would hold the pipes open. Closing a serial line waits until it is
# empty, so when both cats are gone everything has been sent.
for process in /proc/[0-9]*; do
    case ${process#/proc/} in
        1 | $out | $err) ;;
        *) kill -9 ${process#/proc/} ;;
    esac
done 2>/dev/null
wait
echo "exit $status" >/dev/ttyS3
# Its report is asked for now, of a QEMU that still runs. Then the guest is ended from outside.
if [ -e /.rig/model ]; then read over <&4; fi
poweroff -f
