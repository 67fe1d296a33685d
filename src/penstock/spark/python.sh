#!/bin/sh
# Starts a Python worker with the interpreter of the driver (PENSTOCK_PYTHON), without PySpark's zips on its path:
# the installed PySpark is the same one, and compiled.
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
exec "$PENSTOCK_PYTHON" "$@"
