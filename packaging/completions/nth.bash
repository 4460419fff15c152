# Completion of nth for bash.

_nth() {
	local current=$2 previous=$3 command=${COMP_WORDS[1]}
	COMPREPLY=()
	if ((COMP_CWORD == 1)); then
		mapfile -t COMPREPLY < <(compgen -W 'run rehearse drain status check config version help' -- "$current")
		return
	fi
	if [[ $previous == --config || $previous == --secrets || $previous == --kubeconfig || $previous == import ]]; then
		mapfile -t COMPREPLY < <(compgen -f -- "$current")
		compopt -o filenames 2>/dev/null
		return
	fi
	local flags=''
	case $command in
	run) flags='--config --dry-run --help' ;;
	rehearse) flags='--config --deadline --kubeconfig --help' ;;
	drain) flags='--config --deadline --undo --help' ;;
	status) flags='--config --json --help' ;;
	check) flags='--config --offline --webhook --help' ;;
	config) flags='--config --check --secrets --help' ;;
	version) flags='--help' ;;
	help) flags='run rehearse drain status check config version' ;;
	esac
	mapfile -t COMPREPLY < <(compgen -W "$flags" -- "$current")
}

complete -F _nth nth
