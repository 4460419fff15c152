# Completion of nth for fish.

complete -c nth -f
complete -c nth -n __fish_use_subcommand -a run -d 'Watch, and drain this node when it is doomed'
complete -c nth -n __fish_use_subcommand -a rehearse -d 'Show what would happen, and change nothing'
complete -c nth -n __fish_use_subcommand -a status -d 'Tell how the running nth stands'
complete -c nth -n __fish_use_subcommand -a check -d 'Tell whether nth can do its work here'
complete -c nth -n __fish_use_subcommand -a config -d 'Print the settings in effect, or judge them'
complete -c nth -n __fish_use_subcommand -a version -d 'Print the version'
complete -c nth -n __fish_use_subcommand -a help -d 'Tell how nth is used'

complete -c nth -n '__fish_seen_subcommand_from run rehearse status check config' -l config -r -F -d 'Read this file and its drop-ins'
complete -c nth -n '__fish_seen_subcommand_from run' -l dry-run -d 'Write nothing to the cluster'
complete -c nth -n '__fish_seen_subcommand_from rehearse' -l deadline -x -d 'How long the notice is'
complete -c nth -n '__fish_seen_subcommand_from rehearse' -l kubeconfig -r -F -d 'Look at the node with this kubeconfig'
complete -c nth -n '__fish_seen_subcommand_from status' -l json -d 'Print it for programs'
complete -c nth -n '__fish_seen_subcommand_from check' -l offline -d 'Check what is there while an image is baked'
complete -c nth -n '__fish_seen_subcommand_from check' -l webhook -d 'Post a test to the webhook'
complete -c nth -n '__fish_seen_subcommand_from config; and not __fish_seen_subcommand_from help' -l check -d 'Only judge them'
complete -c nth -n '__fish_seen_subcommand_from config; and not __fish_seen_subcommand_from help' -l secrets -r -F -d 'Where import puts secrets'
complete -c nth -n '__fish_seen_subcommand_from run rehearse status check config version' -l help -d 'Tell how it is used'
complete -c nth -n '__fish_seen_subcommand_from help' -a 'run rehearse status check config version'
