# TAB completes the keys and names of `pyrobbb run`, in fish:  pyrobbb completion fish | source
function __pyrobbb_choices
    set -l words (commandline -opc) (commandline -ct)
    set -lx COMP_LINE "run $words[3..]"
    pyrobbb run -sc query=fish 2>/dev/null
end
complete -c pyrobbb -n __fish_use_subcommand -f -a 'run analyse check report summarise completion'
complete -c pyrobbb -n '__fish_seen_subcommand_from completion' -f -a 'bash zsh fish'
complete -c pyrobbb -n '__fish_seen_subcommand_from run' -f -a '(__pyrobbb_choices)'
