#compdef dsh
# Completion of dsh in zsh: evaluated in ~/.zshrc, or as a file _dsh in a folder of $fpath.
_dsh() {
    local line
    local -a described plain
    for line in "${(@f)$(command dsh completion zsh -- "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}"; do
        case $line in
            $'\tfiles') compset -P '--*='; _files; return ;;
            $'\tfolders') compset -P '--*='; _files -/; return ;;
            *$'\t'?*) described+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}") ;;
            ?*) plain+=("${line%%$'\t'*}") ;;
        esac
    done
    (( $#described )) && _describe -V dsh described
    (( $#plain )) && compadd -V dsh-plain -a plain
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _dsh "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
    compdef _dsh dsh
fi
