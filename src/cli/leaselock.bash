# bash completion for leaselock(1), based on the functions of bash-completion.
#
# Commands and options are taken from "leaselock --help", so there is no second
# list to maintain.  Scopes and lock names are those of leases that the role of
# the connection may see, if the server answers within 200 ms or
# LEASELOCK_COMPLETION_SECONDS.

# _leaselock_synopsis HELP COMMAND: the usage of a command, on one line
_leaselock_synopsis()
{
	awk -v command="$2" '
		/^  leaselock / { within = $2 == command }
		/^$/ { within = 0 }
		within { printf "%s ", $0 }' <<<"$1"
}

# _leaselock_takes_value HELP OPTION
_leaselock_takes_value()
{
	[[ $2 == -[hpUd] || $1 =~ (^|[^a-z-])"$2"\ [A-Z] ]]
}

# _leaselock_plain WORD: whether a word needs no evaluation; we evaluate none
_leaselock_plain()
{
	[[ $1 != *[\$\`\"\'\\~]* ]]
}

# _leaselock_status COLUMN ARGUMENT...: the scopes or lock names in the output of
# a status command.  They are at the start of each line; names that need other
# escapes than these two cannot be typed anyway.
_leaselock_status()
{
	local text='\(\([^"\\]\|\\["\\]\)*\)' column=$1
	shift
	timeout "${LEASELOCK_COMPLETION_SECONDS:-0.2}" "$@" 2>/dev/null </dev/null |
		sed -n 's/^{"scope": *"'"$text"'", *"name": *"'"$text"'".*/\'"$column"'/p' |
		sed 's/\\\(["\\]\)/\1/g' | sort -u
}

# _leaselock_offer: offers the lines of standard input that start with $cur, quoted
_leaselock_offer()
{
	local line quote= typed=$cur
	case $cur in
		\'*|\"*) quote=${cur:0:1} typed=${cur:1} ;;
		*) _leaselock_plain "$cur" || typed=${cur//\\/} ;;
	esac
	while IFS= read -r line; do
		[[ $line == "$typed"* ]] || continue
		case $quote in
			\') [[ $line != *\'* ]] || continue ;;
			\") [[ $line != *[\$\`\"\\!]* ]] || continue ;;
			*) printf -v line %q "$line" ;;
		esac
		COMPREPLY+=("$line")
	done
	[[ $quote ]] || __ltrim_colon_completions "$cur"
}

_leaselock()
{
	local cur prev words cword split
	_init_completion -s -n : || return

	local program=${words[0]} help synopsis command= operands=0 i word
	local scope= connection=()
	help=$("$program" --help 2>/dev/null) || return
	local commands=$(sed -n 's/^  leaselock \([a-z]*\) .*/\1/p' <<<"$help")

	# the words before the current one
	for ((i = 1; i < cword; i++)); do
		word=${words[i]}
		case $word in
			--)
				# the name may follow a "--" of its own
				if [[ $command == run && $operands -gt 0 ]]; then
					_command_offset $((i + 1))
					return
				fi
				;;
			--scope=* | --host=* | --port=* | --username=* | --dbname=*)
				_leaselock_plain "${word#*=}" || return
				[[ $word == --scope=* ]] && scope=${word#*=} || connection+=("$word")
				;;
			-*)
				if _leaselock_takes_value "$help" "$word" && ((i + 1 < cword)); then
					i=$((i + 1))
					case $word in
						--scope)
							_leaselock_plain "${words[i]}" || return
							scope=${words[i]}
							;;
						-[hpUd] | --host | --port | --username | --dbname)
							_leaselock_plain "${words[i]}" || return
							connection+=("$word" "${words[i]}")
							;;
					esac
				fi
				;;
			*)
				if [[ ! $command ]]; then command=$word; else operands=$((operands + 1)); fi
				;;
		esac
	done
	synopsis=$(_leaselock_synopsis "$help" "$command")
	local status=("$program" status --json --quiet "${connection[@]}")

	if [[ $prev == -* && $prev != -- ]] && _leaselock_takes_value "$help" "$prev"; then
		case $prev in
			--scope) _leaselock_offer < <(_leaselock_status 1 "${status[@]}") ;;
			--name) _leaselock_offer < <(_leaselock_status 3 "${status[@]}" --scope "${scope:-public}") ;;
			-h | --host) _known_hosts_real -- "$cur" ;;
		esac
	elif [[ $cur == -* ]]; then
		# the options of the command, and those of every command
		COMPREPLY=($(compgen -W '$(grep -oE -- "--[a-z][a-z-]*" <<<"$synopsis")
			--quiet --version --help --host --port --username --dbname' -- "$cur"))
	elif [[ ! $command ]]; then
		COMPREPLY=($(compgen -W '$commands' -- "$cur"))
	elif [[ $operands == 0 && $synopsis == "  leaselock $command "?(\[)NAME* ]]; then
		_leaselock_offer < <(_leaselock_status 3 "${status[@]}" --scope "${scope:-public}")
	fi
} && complete -F _leaselock leaselock
