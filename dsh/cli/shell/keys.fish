# A key of fish that opens the search; what is chosen comes into the command line.
function __dsh_pick
    set -l line "$(commandline -b)"
    if string match -q 'dsh *' -- $line
        set -l chosen (command dsh search -i)
        and commandline -i -- $chosen
    else
        set -l chosen (command dsh search -i --print -- $line)
        and begin
            commandline -r -- $chosen
            string match -q '*""' -- $chosen
            and commandline -C (math (string length -- $chosen) - 1)
        end
    end
    commandline -f repaint
end
bind @KEY@ __dsh_pick
bind -M insert @KEY@ __dsh_pick
