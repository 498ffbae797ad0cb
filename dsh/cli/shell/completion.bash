# Completion of dsh in bash 4 and later.
_dsh() {
    local line=${COMP_LINE:0:COMP_POINT} word head= breaks=${COMP_WORDBREAKS//[^=:]/} value
    # What bash replaces begins after the last of these, not at the beginning of the word.
    word=${line##*[[:space:]]}
    [[ -n $breaks ]] && head=${word%"${word##*[$breaks]}"}
    COMPREPLY=()
    while IFS= read -r value; do
        case $value in
            $'\tfiles') compopt -o default 2>/dev/null; return ;;
            $'\tfolders') compopt -o dirnames 2>/dev/null; return ;;
        esac
        printf -v value %q "${value#"$head"}"
        COMPREPLY+=("$value")
    done < <(command dsh completion bash -- "$line" 2>/dev/null)
}
complete -o nosort -F _dsh dsh 2>/dev/null || complete -F _dsh dsh
