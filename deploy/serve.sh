#!/bin/sh
# Begin a federation's run, or go on with it after a crash or a reboot.
#     serve.sh RUN FILE.py --kit KIT --listen HOST:PORT [options of aspire server]
set -eu
run=$1
shift
if [ -e "$run/result.json" ]; then
    echo "The run in $run has ended."
elif [ -e "$run/run.json" ]; then
    exec aspire resume "$run"
else
    exec aspire server "$@" --out "$run"
fi
