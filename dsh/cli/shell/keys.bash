# A key of bash that opens the search; what is chosen comes into the command line.
__dsh_pick() {
    local chosen
    case $READLINE_LINE in
        'dsh '*)
            chosen=$(command dsh search -i) || return 0
            READLINE_LINE=${READLINE_LINE:0:READLINE_POINT}$chosen${READLINE_LINE:READLINE_POINT}
            READLINE_POINT=$((READLINE_POINT + ${#chosen}))
            ;;
        *)
            chosen=$(command dsh search -i --print -- "$READLINE_LINE") || return 0
            READLINE_LINE=$chosen
            READLINE_POINT=${#chosen}
            [[ $chosen == *'""' ]] && READLINE_POINT=$((READLINE_POINT - 1))
            ;;
    esac
    return 0
}
bind -m emacs -x '"@KEY@": __dsh_pick'
bind -m vi-insert -x '"@KEY@": __dsh_pick'
