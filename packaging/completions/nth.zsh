#compdef nth
# Completion of nth for zsh.

_nth() {
	local -a commands
	commands=(
		'run:watch for interruptions and drain this node'
		'rehearse:show what a spot interruption would do, change nothing'
		'drain:drain this node now, or undo that'
		'status:show daemon status'
		'check:verify that this node can be drained'
		'config:print or validate the configuration'
		'version:print the version'
		'help:tell how nth is used'
	)
	if ((CURRENT == 2)); then
		_describe command commands
		return
	fi
	local -a flags
	local config='--config[read this file and its drop-ins]:file:_files' help='--help[tell how it is used]'
	case $words[2] in
	run) flags=("$config" '--dry-run[write nothing to the cluster]' "$help") ;;
	rehearse) flags=("$config" '--deadline[how long the notice is]:duration:(2m 1m 20s)' '--kubeconfig[look at the node with this kubeconfig]:file:_files' "$help") ;;
	drain) flags=("$config" '--deadline[give up after so long]:duration:(10m 30m 1h)' '--undo[take back what nth drain has set]' "$help") ;;
	status) flags=("$config" '--json[print it for programs]' "$help") ;;
	check) flags=("$config" '--offline[check what is there while an image is baked]' '--webhook[post a test to the webhook]' "$help") ;;
	config) flags=("$config" '--check[only judge them]' '--secrets[where import puts secrets]:directory:_directories' "$help" '1::import:(import)' '2::file:_files') ;;
	version) flags=("$help") ;;
	help)
		_describe command commands
		return
		;;
	esac
	shift words
	((CURRENT--))
	_arguments $flags
}

_nth "$@"
