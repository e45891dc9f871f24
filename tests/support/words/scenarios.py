"""What a user enters in the transcripts of `tests/transcripts`: a scenario for each command, and for mistakes."""

SCENARIOS = {
    "run": """
phyla run small.py --workers 0
phyla run small.py --workers 0
phyla run small.py --workers 0 --overwrite small
phyla run quadratic.toml --workers 1
""",
    "check": """
phyla check small.py --workers 0
sed 's/if trial.source else/if False else/' small.py > forgets.py
phyla check forgets.py --workers 0
sed 's/(score=/(score=__import__("random").Random(trial.seed).gauss(0, 0.2) + /' small.py > noisy.py
phyla check noisy.py --workers 0
""",
    "watch": """
mkdir -p ckpt/step-1 ckpt/step-2
echo abc > ckpt/step-1/weights
echo abcdef > ckpt/step-2/weights
phyla watch ckpt --suite suites.py --format quiet --once --plan
phyla watch ckpt --suite suites.py --format quiet --quiet 0.01s --once --workers 0
""",
    "stop": """
python -c 'from small import study; study.ask()'
phyla stop small
phyla status
phyla stop small
""",
    "change": """
phyla run small.py --workers 0 > /dev/null
sed 's/total_steps=20/total_steps=25/' small.py > longer.py
phyla run longer.py --workers 0
phyla change longer.py
phyla run longer.py --workers 0
""",
    "init": """
phyla init script.py
cat study.toml
phyla init script.py
""",
    "replay": """
phyla run small.py --workers 0 > /dev/null
phyla replay small --file small.py --workers 0
phyla replay small --file small.py --workers 0 --continue 5
""",
    "status": """
phyla status
phyla run small.py --workers 0 > /dev/null
phyla status
phyla status small
""",
    "dashboard": """
phyla dashboard --port 0 &
kill -INT %1
""",
    "best": """
phyla run small.py --workers 0 > /dev/null
phyla best small
""",
    "final": """
sed 's/(score=/(score=__import__("random").Random(trial.seed).gauss(0, 2) + /' small.py > noisy.py
phyla run noisy.py --workers 0
phyla final small --file noisy.py --candidates 4 --measurements 12 --workers 0
phyla best small
""",
    "trials": """
phyla run small.py --workers 0 > /dev/null
phyla trials small
phyla trials small --story 16
""",
    "evaluations": """
mkdir -p ckpt/step-1
echo abc > ckpt/step-1/weights
phyla watch ckpt --suite suites.py --format quiet --quiet 0.01s --once --workers 0 > /dev/null
phyla evaluations project
""",
    "report": """
phyla run small.py --workers 0 > /dev/null
phyla report small
""",
    "compare": """
phyla run small.py --workers 0 --replicates 3 > /dev/null
sed 's/"small"/"other"/; s/total_steps=20/total_steps=20, exploit=None/' small.py > other.py
phyla run other.py --workers 0 --replicates 3 > /dev/null
phyla compare small other
""",
    "worker": """
sed 's/phyla.PBT(.*/phyla.RandomSearch(2, 10),/' small.py > plain.py
python -c 'from plain import study; study.results()'
phyla worker plain.py --workers 1
""",
    "pools": """
phyla workers
phyla run small.py --workers 0 > /dev/null
phyla up small.py --workers 1
phyla down small
""",
    "serve": """
phyla run small.py --workers 0 > /dev/null
phyla serve --port 0 --publish &
phyla status --server .phyla/service.json
kill -INT %1
""",
    "export": """
phyla run small.py --workers 0 > /dev/null
phyla export small --what schedule --format csv
phyla export small -o trials.json
phyla export small -o trials.json
""",
    "token": """
phyla run small.py --workers 0 > /dev/null
phyla token create laptop --role viewer --expires 30d
phyla token list
phyla token revoke laptop
phyla token list
""",
    "gc": """
phyla run small.py --workers 0 > /dev/null
phyla gc small --explain
phyla gc small
""",
    "delete": """
phyla run small.py --workers 0 > /dev/null
phyla delete small --yes smal
phyla delete small --yes small
phyla status
""",
    "doctor": """
phyla run small.py --workers 0 > /dev/null
phyla doctor
rm -rf .phyla/checkpoints/small/13.*
phyla doctor small
""",
    "mistakes-options": """
# An option that is misspelt
phyla run small.py --wokers 2
# A command that is misspelt
phyla stats small
# A file that is missing
phyla run smal.py
# A directory in place of a file
phyla run .
# A number that is out of range
phyla run small.py --workers -1
# An unknown study of a file
phyla run small.py --study smal
# An unknown launcher
phyla up small.py --launcher slrum
# A time without a unit that phyla knows
phyla run small.py --time-limit 4x
""",
    "mistakes-study-files": """
# Two studies in one file
cp small.py two.py
sed -n 's/small/other/; s/study/second/; /^second/,$p' small.py >> two.py
phyla run two.py
# No study in a file
phyla run script.py
# A syntax error
echo 'study = phyla.Study(' > broken.py
phyla run broken.py
# A file that raises
echo 'import torhc' > raises.py
phyla run raises.py
# A range upside down
sed 's/0.01, 1.0, log=True/1.0, 0.01/' small.py > upside-down.py
phyla run upside-down.py
# A logarithmic range that begins at 0
sed 's/0.01, 1.0/0.0, 1.0/' small.py > log-of-0.py
phyla run log-of-0.py
# An unknown strategy
sed 's/phyla.PBT/phyla.PTB/' small.py > strategy.py
phyla run strategy.py
# A setting of the strategy that is misspelt
sed 's/population_size/population/' small.py > setting.py
phyla run setting.py
# A number that does not fit
sed 's/population_size=4/population_size=0/' small.py > nobody.py
phyla run nobody.py
# A training function that worker processes cannot import
sed 's/    train,/    lambda trial: None,/' small.py > lambda.py
phyla run lambda.py
""",
    "mistakes-toml": """
# A syntax error
sed 's/^objective.*/objective = minimize loss/' quadratic.toml > mistake.toml
phyla run mistake.toml
# A key that is misspelt
sed 's/^objective/objectiv/' quadratic.toml > mistake.toml
phyla run mistake.toml
# A value of a wrong type
sed 's/population_size = 2/population_size = "2"/' quadratic.toml > mistake.toml
phyla run mistake.toml
# An unknown strategy
sed 's/pbt/ptb/' quadratic.toml > mistake.toml
phyla run mistake.toml
# A setting of the strategy that is misspelt
sed 's/steps_per_trial/steps/' quadratic.toml > mistake.toml
phyla run mistake.toml
# An unknown rule
sed 's/^population_size = 2/&\\nexploit = "trunc"/' quadratic.toml > mistake.toml
phyla run mistake.toml
# A parameter that is no range
sed 's/^lr = .*/lr = 0.1/' quadratic.toml > mistake.toml
phyla run mistake.toml
# A range upside down
sed 's/low = 1e-4/low = 2.0/' quadratic.toml > mistake.toml
phyla run mistake.toml
# A placeholder that is misspelt
sed 's/{lr}/{learning_rate}/' quadratic.toml > mistake.toml
phyla run mistake.toml
# No objective
sed '/^objective/d' quadratic.toml > mistake.toml
phyla run mistake.toml
""",
    "mistakes-training": """
# An exception
sed 's/    for _/    1 \\/ 0\\n    for _/' small.py > raises.py
phyla run raises.py --workers 0 --overwrite small
# A metric of another name
sed 's/report(score/report(scores/' small.py > renamed.py
phyla run renamed.py --workers 0 --overwrite small
# No report
sed '/trial.report/d' small.py > silent.py
phyla run silent.py --workers 0 --overwrite small
# No checkpoint
sed '/write_text/d' small.py > unsaved.py
phyla run unsaved.py --workers 0 --overwrite small
# sys.exit
sed 's/    for _/    raise SystemExit(1)\\n    for _/' small.py > exits.py
phyla run exits.py --workers 0 --overwrite small
# nan
sed 's/score=.*)/score=float("nan"))/' small.py > nan.py
phyla run nan.py --workers 0 --overwrite small
# A checkpoint that is not loaded
sed 's/if trial.source else/if False else/' small.py > forgets.py
phyla run forgets.py --workers 0 --overwrite small
# A hyperparameter that is not read
sed 's/trial.params\\["momentum"\\]/1/' small.py > unread.py
phyla run unread.py --workers 0 --overwrite small
# A hyperparameter that is misspelt
sed 's/params\\["lr"\\]/params["LR"]/' small.py > misspelt.py
phyla run misspelt.py --workers 0 --overwrite small
# A command that fails
echo 'echo no such device >&2; exit 3' > train.sh
phyla run quadratic.toml --workers 0
""",
    "mistakes-places": """
# A study that is unknown
phyla run small.py --workers 0 > /dev/null
phyla status smal
# A home that is misspelt
phyla status --home .phila
# A database that is unknown
phyla status --storage mysql://localhost/db
# A variable that is not set
phyla status --storage ""
# A service that does not run
phyla status --server http://127.0.0.1:9
# A service without a scheme
phyla status --server localhost:8470
# A wrong token
phyla serve --port 0 --publish &
export PHYLA_TOKEN=wrong
phyla status --server .phyla/service.json
kill -INT %1
# Checkpoints that were deleted
rm -rf .phyla/checkpoints/small
sed 's/total_steps=20/total_steps=25/' small.py > longer.py
phyla change longer.py
phyla run longer.py --workers 0
# A database that is none
echo 'no database' > .phyla/phyla.db
phyla status
""",
}
