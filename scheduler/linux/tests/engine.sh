#!/bin/sh
# A container engine for tests. A container is a folder with the files cpus, quota, period and shares; with "down" the engine does
# not answer for it, with "deaf" it accepts changes and keeps none.
for at; do :; done
if [ "$1" = version ]; then
    echo 1
    exit
fi
if [ ! -d "$at" ]; then
    echo "Error: No such container: $at" >&2
    exit 1
fi
if [ -e "$at/down" ]; then
    echo "Cannot connect to the Docker daemon" >&2
    exit 1
fi
case $1 in
inspect) echo "$(cat "$at/cpus")|$(cat "$at/quota")|$(cat "$at/period")|$(cat "$at/shares")" ;;
update)
    shift
    [ -e "$at/deaf" ] && exit
    while [ $# -gt 1 ]; do
        case $1 in
        --cpuset-cpus) echo "$2" >"$at/cpus" ;;
        --cpu-quota) echo "$2" >"$at/quota" ;;
        --cpu-period) echo "$2" >"$at/period" ;;
        --cpu-shares) echo "$2" >"$at/shares" ;;
        esac
        shift 2
    done
    ;;
*) exit 1 ;;
esac
