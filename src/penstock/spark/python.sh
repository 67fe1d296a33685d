#!/bin/sh
# Starts a Python worker with the interpreter of the driver (PENSTOCK_PYTHON), without PySpark's zips on its path:
# the installed PySpark is the same one, and compiled. By the fork server (forkserver.py) where there is one.
path=
old_ifs=$IFS
IFS=:
for entry in $PYTHONPATH; do
  case $entry in
    *.zip | *.jar) ;;
    *) path=${path:+$path:}$entry ;;
  esac
done
IFS=$old_ifs
PYTHONPATH=$path
export PYTHONPATH
unset PYTHONDONTWRITEBYTECODE
PENSTOCK_JVM=$PPID
export PENSTOCK_JVM
if [ -n "$PENSTOCK_FORK_SERVER" ] && [ "$1" = -m ]; then
  exec "$PENSTOCK_PYTHON" -IS "${0%/*}/forkclient.py" "$@"
fi
exec "$PENSTOCK_PYTHON" "$@"
