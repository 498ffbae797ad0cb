# Completion of dsh in fish.
function __dsh_complete
    set -l words (commandline -opc)
    set -l typed "$(commandline -ct)"
    set -l head (string match -r -- '^--[^=]*=' $typed)
    for line in (command dsh completion fish -- $words[2..-1] $typed 2>/dev/null)
        switch $line
            case \tfiles \tfolders
                # What an unknown command would be offered: files.
                set -l found (complete -C "'' "(string replace -- "$head" '' $typed))
                if test $line = \tfolders
                    set found (string match -- '*/' $found)
                end
                printf "$head%s\n" $found
            case '*'
                printf '%s\n' $line
        end
    end
end
complete -c dsh -f -k -a '(__dsh_complete)'
