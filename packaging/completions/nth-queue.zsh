#compdef nth-queue
# Completion of nth-queue for zsh.

_nth-queue() {
	local -a commands
	commands=(
		'run:drain nodes from an SQS queue'
		'status:show daemon status'
		'check:verify that nodes can be drained from the queue'
		'config:print or validate the configuration'
		'version:print the version'
		'help:tell how nth-queue is used'
	)
	if ((CURRENT == 2)); then
		_describe command commands
		return
	fi
	local -a flags
	local config='--config[read this file and its drop-ins]:file:_files' help='--help[tell how it is used]'
	case $words[2] in
	run) flags=("$config" '--dry-run[write nothing to the cluster, and leave the messages]' "$help") ;;
	status) flags=("$config" '--json[print it for programs]' "$help") ;;
	check) flags=("$config" '--webhook[post a test to the webhook]' "$help") ;;
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

_nth-queue "$@"
