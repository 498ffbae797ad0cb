# A key of zsh that opens the search; what is chosen comes into the command line.
__dsh_pick() {
    local chosen
    if [[ $BUFFER == 'dsh '* ]]; then
        chosen=$(command dsh search -i) && LBUFFER+=$chosen
    elif chosen=$(command dsh search -i --print -- "$BUFFER"); then
        BUFFER=$chosen
        CURSOR=$#BUFFER
        [[ $BUFFER == *'""' ]] && (( CURSOR -= 1 ))
    fi
    zle reset-prompt
}
zle -N dsh-pick __dsh_pick
bindkey -M emacs '@KEY@' dsh-pick
bindkey -M viins '@KEY@' dsh-pick
