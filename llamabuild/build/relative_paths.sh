# Run a compiler with the paths of its source tree made relative, as a launcher in front of it:
#
#     sh relative_paths.sh SOURCE COMMAND [ARGUMENT …]
#
# Then no path of the tree gets into __FILE__, and the same file in another tree has the same command line. ccache does
# this by itself (base_dir); a prefix map would do the first and spoil the second. Definitions are left as they are, and
# so is everything when the working folder is not in the tree. It runs for every compile step, and a POSIX shell starts
# in a tenth of the time that a Python needs.
source=$1
shift
case $PWD/ in
    "$source"/*) below=${PWD#"$source"} ;;
    *) exec "$@" ;;
esac
there=.
if [ "$below" ]; then there=..; below=${below%/*}; fi
while [ "$below" ]; do there=$there/..; below=${below%/*}; done
for word do
    shift
    case $word in
        -D*) ;;
        *"$source/"*)
            done=
            while rest=${word#*"$source/"}; [ "$rest" != "$word" ]; do
                done=$done${word%%"$source/"*}$there/
                word=$rest
            done
            word=$done$word
            ;;
    esac
    set -- "$@" "$word"
done
exec "$@"
