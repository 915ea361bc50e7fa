# TAB completes the keys and names of `python -m experiments.run`, in bash:  source experiments/completion.bash
_experiments_run() {
    [[ $COMP_LINE == *" -m experiments.run "* ]] || return
    local line="experiments.run ${COMP_LINE#* -m experiments.run }" choices
    choices=$(COMP_LINE=$line COMP_POINT=${#line} "${COMP_WORDS[0]}" -m experiments.run -sc query=bash 2>/dev/null)
    COMPREPLY=($(compgen -W "$choices" -- "${COMP_WORDS[COMP_CWORD]}"))
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//=}
complete -o nospace -o default -F _experiments_run python python3 .venv/bin/python

# and of the command:  source <(pyrobbb completion bash)
_pyrobbb() {
    local word=${COMP_WORDS[COMP_CWORD]} choices
    if [[ $COMP_CWORD == 1 ]]; then
        choices="run analyse check report summarise completion"
    elif [[ ${COMP_WORDS[1]} == completion ]]; then
        choices="bash zsh fish"
    elif [[ ${COMP_WORDS[1]} == run ]]; then
        local line="run ${COMP_LINE#* run }"
        choices=$(COMP_LINE=$line COMP_POINT=${#line} "${COMP_WORDS[0]}" run -sc query=bash 2>/dev/null)
    fi
    COMPREPLY=($(compgen -W "$choices" -- "$word"))
}
complete -o nospace -o default -F _pyrobbb pyrobbb
