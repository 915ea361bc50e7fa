# TAB completes the keys and names of `pyrobbb run`, in zsh:  source <(pyrobbb completion zsh)
_pyrobbb() {
    if (( CURRENT == 2 )); then
        compadd run analyse check report summarise completion
    elif [[ $words[2] == completion ]]; then
        compadd bash zsh fish
    elif [[ $words[2] == run ]]; then
        compadd -Q -S '' -- $(_pyrobbb_choices $words[1] $words[3,CURRENT])
    else
        _files
    fi
}
_pyrobbb_choices() {
    local line="run ${argv[2,-1]}"
    COMP_LINE=$line $1 run -sc query=fish 2>/dev/null
}
compdef _pyrobbb pyrobbb
